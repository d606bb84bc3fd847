//! `matins version`.

use clap::Args;
use serde_json::json;

use crate::failure::Result;
use crate::output;
use crate::session::Global;

#[derive(Debug, Args)]
pub(crate) struct Version {}

impl Version {
    #[allow(clippy::unused_self, reason = "every command is run the same way")]
    pub(crate) fn run(self, global: &Global) -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let zones = matins_core::cron::tz_release();
        let schema = matins_store::sqlite::migrate::LATEST;
        let sqlite = matins_store::sqlite::rusqlite::version();
        if global.json {
            let answer = json!({
                "version": version,
                "zone_table": zones,
                "schema_version": schema,
                "sqlite": sqlite,
                "stores": ["sqlite"],
            });
            return output::line(&answer.to_string());
        }
        output::line(&format!(
            "matins {version}\ntime zones {zones}\nstore schema {schema}\nSQLite {sqlite}"
        ))
    }
}
