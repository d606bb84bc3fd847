//! The test kit: what it runs, when, and what it says of it.

use std::time::Duration;

use jiff::Timestamp;
use matins::testing::TestKit;
use matins::{Clock as _, Context, ScheduleSpec, State, Task, TaskError};
use serde::{Deserialize, Serialize};

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Serialize, Deserialize)]
struct Bell {
    rings: String,
}

impl Task for Bell {
    const TYPE: &'static str = "bell";
}

fn bell(rings: &str) -> Bell {
    Bell { rings: rings.to_owned() }
}

fn ring(bell: Bell, context: Context) -> Result<String, TaskError> {
    match (bell.rings.as_str(), context.attempt()) {
        ("late", 1) => Err(TaskError::retry_in("the rope is wet", 2 * HOUR)),
        ("never", _) => Err(TaskError::permanent("it is cracked")),
        ("again", 1) => {
            let at = context.client().now() + jiff::SignedDuration::from_hours(3);
            Err(TaskError::snooze_until(at))
        }
        (rings, attempt) => Ok(format!("{rings} {attempt}")),
    }
}

#[tokio::test]
async fn inline_says_how_it_ended() {
    let kit = TestKit::new().blocking_handler(ring);
    let said = kit.inline(bell("low")).await.unwrap();
    assert_eq!(said.as_str(), "\"low 1\"");
    let error = kit.inline(bell("never")).await.unwrap_err();
    assert!(error.to_string().contains("it is cracked"), "{error}");
    let error = kit.inline(bell("late")).await.unwrap_err();
    assert!(error.to_string().contains("the rope is wet"), "{error}");
}

/// Nothing runs before the clock is turned to its time.
#[tokio::test]
async fn retries_and_snoozes_wait_for_the_clock() {
    let begin: Timestamp = "2026-11-29T21:00:00Z".parse().unwrap();
    for (how, hours) in [("late", 2), ("again", 3)] {
        let kit = TestKit::starting_at(begin).blocking_handler(ring);
        assert_eq!(kit.clock().now(), begin);
        let id = kit.enqueue(bell(how)).await.unwrap().task.id;
        assert_eq!(kit.drain().await[0].state, State::Pending);
        kit.clock().advance((hours - 1) * HOUR);
        assert!(kit.drain().await.is_empty(), "{how}");
        kit.clock().advance(HOUR);
        assert_eq!(kit.drain().await.len(), 1, "{how}");
        let task = kit.client().task(id).await.unwrap();
        assert_eq!((task.state, task.attempt), (State::Completed, 2), "{how}");
    }
}

/// A night of an hourly schedule, turned in steps: each hour fires at its own time.
#[tokio::test]
async fn schedules_fire_at_their_own_times() {
    let begin: Timestamp = "2026-11-29T21:30:00Z".parse().unwrap();
    let kit = TestKit::starting_at(begin).blocking_handler(ring);
    let mut spec = ScheduleSpec::new("hours", "0 * * * *", Bell::TYPE);
    spec.payload = matins::Json::parse(r#"{"rings": "{{ occurrence.time }}"}"#).unwrap();
    kit.client().put_schedule(spec, "test").await.unwrap();
    let ran = kit.advance(3 * HOUR, HOUR / 4).await;
    let rang: Vec<_> = ran.iter().map(|task| task.result.as_ref().unwrap().as_str()).collect();
    assert_eq!(
        rang,
        ["\"2026-11-29T22:00:00Z 1\"", "\"2026-11-29T23:00:00Z 1\"", "\"2026-11-30T00:00:00Z 1\""]
    );
}
