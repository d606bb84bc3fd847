//! Whether the schema in a database is the one that this program made: somebody may have dropped an
//! index or changed a function by hand.
//!
//! What is expected is not written down anywhere: the migrations are applied to a schema of their
//! own in a transaction that is rolled back, and the two are compared. So the database itself says
//! how it writes a definition, whatever its version.
//!
//! Must never leave anything of that behind, and never change a table: what cannot be put right
//! without touching data is only told.

use std::collections::BTreeMap;

use matins_core::store::StoreError;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::error::{Failure, Res};
use super::migrate::{self, ALL, LATEST};
use super::row;

/// The schema that is made to compare with.
const MODEL: &str = "matins_as_it_should_be";

const OBJECTS: &str = include_str!("schema_objects.sql");

/// One object that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// `index`, `function`, `column`, …
    pub kind: String,
    pub name: String,
    pub problem: Problem,
    /// What puts it right; `None`: nothing does without touching data.
    repair: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    Missing,
    Changed,
    /// Somebody else's: it may stay.
    Unknown,
}

impl Difference {
    /// Whether [`repair`] puts it right.
    pub fn can_be_repaired(&self) -> bool {
        self.repair.is_some()
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, name, .. } = self;
        match self.problem {
            Problem::Missing => write!(f, "{kind} {name} is missing"),
            Problem::Changed => write!(f, "{kind} {name} is not as this program made it"),
            Problem::Unknown => write!(f, "{kind} {name} is not of this program"),
        }
    }
}

/// What differs from the schema that this program expects. `None`: the database is older or newer.
pub async fn compare(url: &str) -> Result<Option<Vec<Difference>>, StoreError> {
    let client = migrate::connect(url).await?;
    Ok(compare_on(&client).await?)
}

/// Puts right what can be; answers that, and what is left.
pub async fn repair(url: &str) -> Result<Option<(Vec<Difference>, Vec<Difference>)>, StoreError> {
    let client = migrate::connect(url).await?;
    let Some(found) = compare_on(&client).await? else { return Ok(None) };
    let (mine, left): (Vec<_>, Vec<_>) = found.into_iter().partition(Difference::can_be_repaired);
    apply(&client, &mine).await?;
    Ok(Some((mine, left)))
}

async fn apply(client: &Client, differences: &[Difference]) -> Res<()> {
    let steps: Vec<&str> = differences.iter().filter_map(|d| d.repair.as_deref()).collect();
    if steps.is_empty() {
        return Ok(());
    }
    let script =
        format!("BEGIN; SET LOCAL search_path = matins, pg_temp; {}; COMMIT", steps.join("; "));
    let done = client.batch_execute(&script).await;
    if done.is_err() {
        client.batch_execute("ROLLBACK").await?;
    }
    Ok(done?)
}

async fn compare_on(client: &Client) -> Res<Option<Vec<Difference>>> {
    if migrate::version(client).await? != LATEST {
        return Ok(None);
    }
    client.batch_execute("BEGIN").await?;
    let compared = in_transaction(client).await;
    client.batch_execute("ROLLBACK").await?;
    compared.map(Some)
}

type Objects = BTreeMap<(String, String), String>;

async fn in_transaction(client: &Client) -> Res<Vec<Difference>> {
    let found = objects(client, "matins").await?;
    let place = format!("CREATE SCHEMA {MODEL}; SET LOCAL search_path = {MODEL}, pg_temp");
    client.batch_execute(&place).await?;
    for step in ALL {
        client.batch_execute(&moved(step.sql, "matins", MODEL)).await?;
    }
    let expected = objects(client, MODEL).await?;
    Ok(differences(&expected, &found))
}

async fn objects(client: &Client, schema: &str) -> Res<Objects> {
    // Nothing is in reach by itself, so that every name is written with its schema.
    client.batch_execute("SET LOCAL search_path = pg_catalog").await?;
    let mut objects = Objects::new();
    for found in client.query_typed(OBJECTS, &[(&schema, Type::TEXT)]).await? {
        let name = moved(&row::text(&found, 1)?, schema, "matins");
        let definition = moved(&row::text(&found, 2)?, schema, "matins");
        objects.insert((row::text(&found, 0)?, name), definition);
    }
    if objects.is_empty() {
        return Err(Failure::broken(format!("there is no schema {schema}")));
    }
    Ok(objects)
}

/// A text that speaks of one schema as if it spoke of another.
fn moved(text: &str, from: &str, to: &str) -> String {
    if from == to {
        return text.to_owned();
    }
    text.replace(&format!("{from}."), &format!("{to}."))
        .replace(&format!("'{from}'::"), &format!("'{to}'::"))
        .replace(&format!("search_path = {from},"), &format!("search_path = {to},"))
        .replace(&format!("search_path TO '{from}'"), &format!("search_path TO '{to}'"))
}

fn differences(expected: &Objects, found: &Objects) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut note = |(kind, name): &(String, String), problem, repair: Option<String>| {
        differences.push(Difference { kind: kind.clone(), name: name.clone(), problem, repair });
    };
    for (key, definition) in expected {
        let (kind, name) = key;
        match (found.get(key), kind.as_str()) {
            (Some(same), _) if same == definition => {}
            (None, "function" | "index") => note(key, Problem::Missing, Some(definition.clone())),
            (None, _) => note(key, Problem::Missing, None),
            (Some(_), "function") => note(key, Problem::Changed, Some(definition.clone())),
            (Some(_), "index") => {
                let anew = format!("DROP INDEX matins.{name}; {definition}");
                note(key, Problem::Changed, Some(anew));
            }
            (Some(_), _) => note(key, Problem::Changed, None),
        }
    }
    for key in found.keys().filter(|key| !expected.contains_key(*key)) {
        note(key, Problem::Unknown, None);
    }
    differences
}
