//! A handler, a schedule and a key: `cargo run -p matins --example report`.

use std::time::Duration;

use matins::{Context, Matins, Pool, ScheduleSpec, Task, TaskError};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Report {
    day: String,
}

impl Task for Report {
    const TYPE: &'static str = "report_generation";
}

async fn render(report: Report, context: Context) -> Result<String, TaskError> {
    println!("attempt {} of the report for {}", context.attempt(), report.day);
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(format!("report-{}.pdf", report.day))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let url = format!("sqlite:{}", dir.path().join("matins.db").display());

    let mut nightly = ScheduleSpec::new("nightly", "0 2 * * *", Report::TYPE);
    nightly.timezone = Some("Asia/Shanghai".to_owned());
    nightly.payload = matins::Json::parse(r#"{"day": "{{ occurrence.date }}"}"#)?;
    nightly.execution_key = Some("report-{{ occurrence.date }}".to_owned());

    let matins = Matins::open(url)
        .pool(Pool::new("cpu_pool", 4).types([Report::TYPE]))
        .handler(render)
        .schedule(nightly)
        .start()
        .await?;

    let report = || Report { day: "2026-11-29".to_owned() };
    let first = matins.enqueue(report()).execution_key("report-2026-11-29").await?;
    let done = matins.client().wait(first.task.id, Some(Duration::from_secs(10))).await?;
    println!("{}: {:?}", done.state, done.result);

    // The key has completed: asked again, the recorded result is returned and nothing runs.
    let again = matins.enqueue(report()).execution_key("report-2026-11-29").await?;
    println!("deduplicated: {}, {:?}", again.deduplicated, again.task.result);

    let next = matins.client().schedule("nightly").await?.state.next_fire;
    println!("next nightly report: {next:?}");
    matins.shutdown().await;
    Ok(())
}
