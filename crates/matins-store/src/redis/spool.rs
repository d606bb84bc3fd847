//! What a node has promised while the database was away, on its own disk until the database has
//! it.
//!
//! A file of texts, each behind its length, each fsynced before its promise is made. What a crash
//! leaves half-written at the end was promised to nobody. A text that cannot be read stays, in a
//! file beside this one, for a person to look at.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    file: File,
    /// Of whole texts.
    end: u64,
}

/// What a spool holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) texts: Vec<String>,
    /// Up to where the file was read.
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
        spool.end = spool.read()?.end;
        let length = spool.file.metadata()?.len();
        if length > spool.end {
            let aside = path.with_extension("torn");
            let mut torn = OpenOptions::new().append(true).create(true).mode(0o600).open(&aside)?;
            spool.file.seek(SeekFrom::Start(spool.end))?;
            io::copy(&mut spool.file, &mut torn)?;
            torn.sync_all()?;
            tracing::warn!(
                bytes = length - spool.end,
                kept = %aside.display(),
                "the end of the journal {} was half-written; it was promised to nobody",
                path.display()
            );
            spool.file.set_len(spool.end)?;
        }
        Ok(spool)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.end == 0
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

    pub(super) fn read(&mut self) -> io::Result<Contents> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut bytes)?;
        let mut contents = Contents::default();
        while let Some((text, length)) = first(&bytes[contents.end as usize..]) {
            contents.texts.push(text);
            contents.end += length as u64;
        }
        Ok(contents)
    }

    /// Forgets what was read. What has been added since stays.
    pub(super) fn forget(&mut self, read: &Contents) -> io::Result<()> {
        if self.end == read.end {
            self.file.set_len(0)?;
            self.end = 0;
            return self.file.sync_data();
        }
        let rest = self.read()?.texts.split_off(read.texts.len());
        let draft = self.path.with_extension("draft");
        let _ = std::fs::remove_file(&draft);
        let mut next = Self::open(&draft)?;
        next.append(&rest)?;
        std::fs::rename(&draft, &self.path)?;
        (self.file, self.end) = (next.file, next.end);
        Ok(())
    }

    /// Keeps a text that is no entry where a person finds it; answers where.
    pub(super) fn put_aside(&self, text: &str) -> io::Result<PathBuf> {
        let path = self.path.with_extension("refused");
        Self::open(&path)?.append(&[text.to_owned()])?;
        Ok(path)
    }
}

/// The first text of what is left, and how many bytes it takes.
fn first(bytes: &[u8]) -> Option<(String, usize)> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let end = (space + 1).checked_add(length)?;
    if bytes.get(end) != Some(&b'\n') {
        return None;
    }
    let text = String::from_utf8(bytes[space + 1..end].to_vec()).ok()?;
    Some((text, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn what_was_appended_is_there_again_whatever_was_torn_off_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.journal");
        let whole = texts(&["a\nb", "", "\u{1f310} 7 x"]);
        Spool::open(&path).unwrap().append(&whole).unwrap();
        let good = std::fs::read(&path).unwrap();
        for torn in ["", "9", "9 ", "9 torn", "3 abc", "x abc\n", "18446744073709551615 a\n"] {
            std::fs::write(&path, [&*good, torn.as_bytes()].concat()).unwrap();
            let mut spool = Spool::open(&path).unwrap();
            assert_eq!(spool.read().unwrap().texts, whole, "{torn:?}");
            spool.append(&texts(&["next"])).unwrap();
            let all = Spool::open(&path).unwrap().read().unwrap().texts;
            assert_eq!(all, [&*whole, &texts(&["next"])].concat(), "{torn:?}");
        }
    }

    #[test]
    fn only_what_was_read_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n.journal");
        let mut spool = Spool::open(&path).unwrap();
        spool.append(&texts(&["a", "b"])).unwrap();
        let read = spool.read().unwrap();
        spool.append(&texts(&["c"])).unwrap();
        spool.forget(&read).unwrap();
        assert_eq!(spool.read().unwrap().texts, texts(&["c"]));
        spool.append(&texts(&["d"])).unwrap();
        let mut again = Spool::open(&path).unwrap();
        let read = again.read().unwrap();
        assert_eq!(read.texts, texts(&["c", "d"]));
        again.forget(&read).unwrap();
        assert!(Spool::open(&path).unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_kept_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(&folder.path().join("n.journal")).unwrap();
        let aside = spool.put_aside("who wrote this?").unwrap();
        assert_eq!(aside, spool.put_aside("and this?").unwrap());
        let kept = Spool::open(&aside).unwrap().read().unwrap().texts;
        assert_eq!(kept, texts(&["who wrote this?", "and this?"]));
    }
}
