//! What a node has promised while the database was away, on its own disk until the database has
//! it.
//!
//! A file of texts, each behind its length, each fsynced before its promise is made. What a crash
//! leaves half-written at the end was promised to nobody. A text that cannot be read stays, in a
//! file beside this one, for a person to look at.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    file: File,
    /// Of whole texts.
    end: u64,
}

/// What is read in one go.
pub(super) const READ: u64 = 1 << 20;

/// A part of what a spool holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) texts: Vec<String>,
    /// Where the next one begins.
    pub(super) end: u64,
}

impl Spool {
    /// Opens or makes it. What a crash left half-written at its end is moved to a file beside it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let is_new = !path.exists();
        let file = options.open(path)?;
        if is_new && let Some(folder) = path.parent() {
            // The name must outlive a power cut, too.
            File::open(folder)?.sync_all()?;
        }
        let mut spool = Self { path: path.to_owned(), file, end: 0 };
        loop {
            let read = spool.read(spool.end, READ)?;
            if read.texts.is_empty() {
                break;
            }
            spool.end = read.end;
        }
        let length = spool.file.metadata()?.len();
        if length > spool.end {
            let bytes = length - spool.end;
            let kept = spool.tear(spool.end)?;
            tracing::warn!(
                bytes,
                kept = %kept.display(),
                "the end of the journal {} was half-written or damaged",
                path.display()
            );
        }
        Ok(spool)
    }

    /// Writes them down, all or none. Safe on disk when it returns.
    pub(super) fn append(&mut self, texts: &[String]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for text in texts {
            writeln!(bytes, "{} {text}", text.len())?;
        }
        self.file.seek(SeekFrom::Start(self.end))?;
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // What is there in part must not stand before what comes next.
            self.file.set_len(self.end)?;
            return Err(error);
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Where its last text ends.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Texts from a place on where one begins, about so many bytes of them.
    pub(super) fn read(&mut self, from: u64, bytes: u64) -> io::Result<Contents> {
        // Enough to see how long the first one is.
        let bytes = bytes.max(32);
        let mut read = Vec::new();
        self.file.seek(SeekFrom::Start(from))?;
        let mut reader = BufReader::new((&mut self.file).take(bytes));
        reader.read_to_end(&mut read)?;
        let mut contents = Contents { texts: Vec::new(), end: from };
        while let Some((text, length)) = first(&read[(contents.end - from) as usize..]) {
            contents.texts.push(text);
            contents.end += length as u64;
        }
        if contents.texts.is_empty()
            && let Some(needed) = length_of(&read).filter(|needed| *needed > bytes)
        {
            return self.read(from, needed);
        }
        Ok(contents)
    }

    /// Moves what is behind a place, and no text, to where a person finds it; answers where.
    pub(super) fn tear(&mut self, from: u64) -> io::Result<PathBuf> {
        // Never longer than it is: that would be filled with zeros.
        let from = from.min(self.end);
        let path = self.path.with_extension("torn");
        let mut torn = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        self.file.seek(SeekFrom::Start(from))?;
        io::copy(&mut self.file, &mut torn)?;
        torn.sync_all()?;
        self.file.set_len(from)?;
        self.end = from;
        Ok(path)
    }

    /// Forgets everything, if there is nothing behind `end`.
    pub(super) fn forget(&mut self, end: u64) -> io::Result<bool> {
        if self.end != end {
            return Ok(false);
        }
        self.file.set_len(0)?;
        self.end = 0;
        self.file.sync_data()?;
        Ok(true)
    }

    /// Keeps a text that is no entry where a person finds it; answers where.
    pub(super) fn put_aside(&self, text: &str) -> io::Result<PathBuf> {
        let path = self.path.with_extension("refused");
        Self::open(&path)?.append(&[text.to_owned()])?;
        Ok(path)
    }
}

/// How many bytes the first text takes with what is around it, by what is written before it.
fn length_of(bytes: &[u8]) -> Option<u64> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length: u64 = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    length.checked_add(space as u64 + 2)
}

/// The first text of what is left, and how many bytes it takes.
fn first(bytes: &[u8]) -> Option<(String, usize)> {
    let length = usize::try_from(length_of(bytes)?).ok()?;
    let (text, end) = bytes.get(..length)?.split_at(length - 1);
    let space = text.iter().position(|byte| *byte == b' ')?;
    let text = String::from_utf8(text[space + 1..].to_vec()).ok()?;
    (end == b"\n").then_some((text, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn all(spool: &mut Spool) -> Vec<String> {
        spool.read(0, READ).unwrap().texts
    }

    #[test]
    fn what_was_appended_is_there_again_whatever_was_torn_off_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.journal");
        let whole = texts(&["a\nb", "", "\u{1f310} 7 x"]);
        Spool::open(&path).unwrap().append(&whole).unwrap();
        let good = std::fs::read(&path).unwrap();
        let torn = ["", "9", "9 ", "9 torn", "3 abc", "x abc\n", "18446744073709551615 a\n", " \n"];
        for torn in torn {
            std::fs::write(&path, [&*good, torn.as_bytes()].concat()).unwrap();
            let mut spool = Spool::open(&path).unwrap();
            assert_eq!(all(&mut spool), whole, "{torn:?}");
            spool.append(&texts(&["next"])).unwrap();
            let again = all(&mut Spool::open(&path).unwrap());
            assert_eq!(again, [&*whole, &texts(&["next"])].concat(), "{torn:?}");
        }
        let kept = std::fs::read_to_string(path.with_extension("torn")).unwrap();
        assert!(kept.starts_with("99 9 torn3 abc"), "{kept}");
    }

    #[test]
    fn it_is_read_in_parts_and_forgotten_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.journal");
        let mut spool = Spool::open(&path).unwrap();
        let long = "x".repeat(100);
        let whole = texts(&["a", &long, "b", "c", &long]);
        spool.append(&whole).unwrap();
        for bytes in [1, 4, 10, 103, 104, 1_000] {
            let (mut from, mut read) = (0, Vec::new());
            while from < spool.end() {
                let part = spool.read(from, bytes).unwrap();
                assert!(part.end > from, "{bytes}");
                (from, read) = (part.end, [read, part.texts].concat());
            }
            assert_eq!(read, whole, "{bytes}");
        }
        let end = spool.end();
        spool.append(&texts(&["d"])).unwrap();
        assert!(!spool.forget(end).unwrap(), "there is one behind it");
        assert_eq!(spool.read(end, READ).unwrap().texts, texts(&["d"]));
        assert!(spool.forget(spool.end()).unwrap());
        assert_eq!(Spool::open(&path).unwrap().end(), 0);
    }

    #[test]
    fn what_was_damaged_meanwhile_does_not_hold_up_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.journal");
        let mut spool = Spool::open(&path).unwrap();
        spool.append(&texts(&["first", "second", "third"])).unwrap();
        let length = spool.end();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 3).unwrap();
        let read = spool.read(0, READ).unwrap();
        assert_eq!(read.texts, texts(&["first", "second"]));
        assert!(read.end < spool.end() && spool.read(read.end, READ).unwrap().texts.is_empty());
        spool.tear(read.end).unwrap();
        assert_eq!(spool.end(), read.end);
        assert_eq!(std::fs::read_to_string(path.with_extension("torn")).unwrap(), "5 thi");
        assert!(spool.forget(read.end).unwrap());
    }

    #[test]
    fn what_cannot_be_read_is_kept_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(&folder.path().join("n.journal")).unwrap();
        let aside = spool.put_aside("who wrote this?").unwrap();
        assert_eq!(aside, spool.put_aside("and this?").unwrap());
        let kept = all(&mut Spool::open(&aside).unwrap());
        assert_eq!(kept, texts(&["who wrote this?", "and this?"]));
    }
}
