//! `matins migrate`.

use clap::Args;
use serde_json::json;

use crate::failure::Result;
use crate::output;
use crate::session::Global;
use crate::storage;

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Print the statements and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Migrate {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        global.refuse_server("migrate")?;
        let config = global.config()?;
        let dry_run = self.dry_run;
        let steps = match dry_run {
            true => storage::pending(&config).await?,
            false => storage::migrate(&config).await?,
        };
        if global.json {
            let steps: Vec<_> = steps
                .iter()
                .map(|step| json!({ "version": step.version, "name": step.name }))
                .collect();
            let answer = json!({ "dry_run": dry_run, "migrations": steps });
            return output::line(&answer.to_string());
        }
        if steps.is_empty() {
            return output::line("the store is up to date");
        }
        for step in steps {
            if dry_run {
                output::line(&format!("-- {} {}\n{}", step.version, step.name, step.sql))?;
            } else {
                output::line(&format!("applied {} {}", step.version, step.name))?;
            }
        }
        Ok(())
    }
}
