//! `matins migrate`.

use clap::Args;
use matins_store::postgres::schema::Difference;
use serde_json::json;

use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::output;
use crate::session::Global;
use crate::storage;

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Print the statements and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Put right what was changed by hand: indexes and functions of a PostgreSQL store
    #[arg(long, conflicts_with = "dry_run")]
    repair: bool,
}

impl Migrate {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        global.refuse_server("migrate")?;
        let config = global.config()?;
        if self.repair {
            return repair(&config, global.json).await;
        }
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

async fn repair(config: &Config, json: bool) -> Result<()> {
    let Some((repaired, left)) = storage::repair(config).await? else {
        return Err(Failure::failed("the schema has another version than this program").hint(
            "matins migrate brings an older one up to date; a newer one needs a newer matins",
        ));
    };
    let texts = |list: &[Difference]| list.iter().map(Difference::to_string).collect::<Vec<_>>();
    if json {
        let answer = json!({ "repaired": texts(&repaired), "left": texts(&left) });
        return output::line(&answer.to_string());
    }
    if repaired.is_empty() && left.is_empty() {
        return output::line("the schema is as it should be");
    }
    for difference in &repaired {
        output::line(&format!("repaired: {difference}"))?;
    }
    for difference in &left {
        output::line(&format!("left as it is: {difference}"))?;
    }
    Ok(())
}
