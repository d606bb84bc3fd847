//! Fills a scratch database with as many tasks as a bench asks for, faster than they could be
//! accepted and run. What is there afterwards is what accepting and running them would have left.

use matins_core::store::StoreError;

use super::bare::Scratch;

/// How many tasks of one pool and type, by what became of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filling<'t> {
    pub pool: &'t str,
    pub kind: &'t str,
    pub payload: &'t str,
    pub pending: usize,
    /// Due tomorrow.
    pub later: usize,
    pub finished: usize,
    /// How many days ago they finished.
    pub days_ago: u32,
}

const OPEN: &str = "WITH n AS MATERIALIZED (
        SELECT nextval('task_seq') AS seq, now() + $after + n * interval '1 microsecond' AS run_at
        FROM generate_series(1, $count) AS n
    ), t AS (
        INSERT INTO task (seq, id, lane, priority, run_at, held, created_at, created_by, payload)
        SELECT seq, ('0197' || substr(lpad(to_hex(seq), 16, '0'), 1, 8)
                     || '7000' || '8000' || substr(lpad(to_hex(seq), 16, '0'), 5))::uuid,
               $lane, 0, run_at, false, now(), 'bench', $payload FROM n
    )
    INSERT INTO $place SELECT $columns FROM n;
    INSERT INTO tally (lane, place, n) VALUES ($lane, $tally, $count);";

const FINISHED: &str = "INSERT INTO history (seq, id, state, lane, priority, run_at, held, attempt,
        retries, losses, interruptions, replays, created_at, created_by, started_at, finished_at,
        deduplicated, worker, outcome, payload)
    SELECT x.seq, ('0198' || substr(lpad(to_hex(x.seq), 16, '0'), 1, 8)
                   || '7000' || '8000' || substr(lpad(to_hex(x.seq), 16, '0'), 5))::uuid,
           2, $lane, 0, x.at, false, 1, 0, 0, 0, 0, x.at, 'bench', x.at, x.at, false, 'bench',
           'completed', $payload
    FROM (SELECT nextval('task_seq') AS seq,
                 now() - $days * interval '1 day' + n * interval '1 microsecond' AS at
          FROM generate_series(1, $count) AS n) AS x;
    INSERT INTO tally (lane, place, n) VALUES ($lane, 6, $count);";

impl Filling<'_> {
    /// The store must have been opened once, and must not be in use.
    pub async fn pour(&self, scratch: &Scratch) -> Result<(), StoreError> {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let lane = format!("(SELECT lane_of({}, {}, false))", quoted(self.pool), quoted(self.kind));
        let make = format!("SET search_path = matins, pg_temp; SELECT {lane};");
        let order = "run_at, seq, $lane, order_key(run_at, 0), 0";
        let line = "$lane, order_key(run_at, 0), seq, 0";
        let pending = OPEN.replace("$place", "ready").replace("$columns", line);
        let later = OPEN.replace("$place", "scheduled").replace("$columns", order);
        let parts = [
            (self.finished, FINISHED.to_owned(), "", ""),
            (self.pending, pending, "interval '0'", "1"),
            (self.later, later, "interval '1 day'", "2"),
        ];
        for (count, sql, after, place) in parts {
            if count > 0 {
                let sql = sql
                    .replace("$after", after)
                    .replace("$tally", place)
                    .replace("$lane", &lane)
                    .replace("$payload", &quoted(self.payload))
                    .replace("$days", &self.days_ago.to_string())
                    .replace("$count", &count.to_string());
                scratch.run(&format!("{make} {sql}")).await?;
            }
        }
        scratch.run("VACUUM (ANALYZE)").await?;
        scratch.run("CHECKPOINT").await
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use matins_core::State;
    use matins_core::store::{Records as _, Store as _};
    use matins_testbed::Postgres;

    use super::*;
    use crate::postgres::{Options, PostgresStore};

    #[tokio::test]
    async fn what_is_poured_in_is_a_sound_store() {
        let scratch = Scratch::new(&Postgres::shared().url("postgres")).await.unwrap();
        let store = PostgresStore::open(scratch.url(), Options::default()).await.unwrap();
        let filling = Filling {
            pool: "p",
            kind: "it's",
            payload: "{}",
            pending: 30,
            later: 20,
            finished: 10,
            days_ago: 1,
        };
        filling.pour(&scratch).await.unwrap();
        assert_eq!(store.check_invariants().await.unwrap(), Vec::<String>::new());
        let stats = store.stats(Timestamp::now()).await.unwrap();
        let count = |state| stats.tasks.get(&("p".into(), state)).copied();
        assert_eq!([count(State::Pending), count(State::Completed)], [Some(50), Some(10)]);
        store.close().await.unwrap();
        scratch.remove().await.unwrap();
    }
}
