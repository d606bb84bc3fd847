//! `matins init`.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;

use crate::config::{FILE_NAME, INIT, reference_page};
use crate::failure::{Failure, Result};
use crate::output;
use crate::session::Global;

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Where to write it
    #[arg(value_name = "FILE", default_value = FILE_NAME)]
    file: PathBuf,
    /// Write it to standard output
    #[arg(long, conflicts_with = "file")]
    stdout: bool,
    /// Print the reference of every key, in Markdown
    #[arg(long, conflicts_with_all = ["file", "stdout"])]
    reference: bool,
}

impl Init {
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        global.refuse_server("init")?;
        if self.reference {
            return output::line(&reference_page());
        }
        if self.stdout {
            return output::line(INIT);
        }
        let shown = self.file.display();
        let file = std::fs::OpenOptions::new().write(true).create_new(true).open(&self.file);
        match file.and_then(|mut file| file.write_all(INIT.as_bytes())) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(Failure::failed(format!("{shown} exists, and stays as it is"))
                    .hint("name another file, or look at matins init --stdout"));
            }
            Err(error) => return Err(Failure::io(format!("cannot write {shown}"), &error)),
        }
        output::line(&format!("wrote {shown}"))?;
        output::note("next: edit it, then matins check and matins serve");
        Ok(())
    }
}
