//! Whether the database agrees with itself. Reads everything; for audits and tests.

use super::PostgresStore;
use super::error::Res;

/// Each yields a row of text for every contradiction it finds.
const CHECKS: &[(&str, &str)] = &[
    (
        "an open task is not in exactly one place",
        "WITH place (seq, name) AS (
             SELECT seq, 'ready' FROM ready UNION ALL
             SELECT seq, 'scheduled' FROM scheduled UNION ALL
             SELECT seq, 'parked' FROM slot WHERE stage > 0 UNION ALL
             SELECT seq, 'held' FROM schedule_live WHERE held UNION ALL
             SELECT seq, 'running' FROM running
         ), found AS (
             SELECT t.seq, t.state, count(p.seq) AS places, string_agg(p.name, ',') AS names
             FROM task AS t LEFT JOIN place AS p ON p.seq = t.seq GROUP BY t.seq, t.state
         )
         SELECT 'task number ' || seq || ', state ' || state || ': ' || coalesce(names, 'nowhere')
         FROM found WHERE places <> (state = 0)::integer
         UNION ALL
         SELECT 'no row for task number ' || seq || ' in ' || name
         FROM place WHERE seq NOT IN (SELECT seq FROM task)",
    ),
    (
        "a task is in line or due later in a way that its row does not say",
        "SELECT 'task number ' || t.seq FROM ready AS r JOIN task AS t ON t.seq = r.seq
         WHERE t.lane <> r.lane OR t.held
            OR (t.concurrency_key IS NULL AND r.ord <> order_key(t.run_at, t.priority))
         UNION ALL
         SELECT 'task number ' || t.seq FROM scheduled AS s JOIN task AS t ON t.seq = s.seq
         WHERE t.lane <> s.lane OR t.held OR t.run_at <> s.run_at
            OR (s.needs >= 2) <> (t.concurrency_key IS NOT NULL)
            OR s.ord <> order_key(t.run_at, t.priority)
         UNION ALL
         SELECT 'task number ' || t.seq FROM running AS r JOIN task AS t ON t.seq = r.seq
         WHERE t.lane <> r.lane",
    ),
    (
        "a concurrency_key does not agree with its tasks",
        "SELECT 'key ' || u.key || ' says ' || u.running || ' running'
         FROM turn AS u
         WHERE u.running <> (
             SELECT count(*) FROM running AS r JOIN task AS t ON t.seq = r.seq
             JOIN lane AS l ON l.id = t.lane
             WHERE t.concurrency_key = u.key AND l.type = u.type)
         UNION ALL
         SELECT 'slot of task number ' || s.seq FROM slot AS s JOIN task AS t ON t.seq = s.seq
         JOIN lane AS l ON l.id = t.lane
         WHERE t.concurrency_key IS DISTINCT FROM s.key OR l.type <> s.type OR t.lane <> s.lane
            OR t.priority <> s.priority OR t.run_at <> s.run_at
            OR (s.stage = 0) <> EXISTS (
                 SELECT 1 FROM ready AS r
                 WHERE r.lane = s.lane AND r.ord = s.ord AND r.seq = s.seq)",
    ),
    (
        "an execution_key does not agree with its task",
        "SELECT 'key ' || k.key FROM exec_key AS k LEFT JOIN (
             SELECT t.id, t.state, t.execution_key, l.type
             FROM task AS t JOIN lane AS l ON l.id = t.lane
         ) AS t ON t.id = k.id AND t.execution_key = k.key AND t.type = k.type
         WHERE k.at IS NULL AND coalesce(t.state, 3) <> 0
         UNION ALL
         SELECT 'task number ' || t.seq || ' has no hold of its key'
         FROM task AS t JOIN lane AS l ON l.id = t.lane
         WHERE t.state = 0 AND t.execution_key IS NOT NULL AND NOT EXISTS (
             SELECT 1 FROM exec_key AS k
             WHERE k.type = l.type AND k.key = t.execution_key AND k.id = t.id AND k.at IS NULL)",
    ),
    (
        "a pending task that expires is not known to expire, or the other way round",
        "SELECT 'task number ' || t.seq FROM task AS t
         WHERE (t.state = 0 AND t.expires_at IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM running AS r WHERE r.seq = t.seq))
           <> EXISTS (SELECT 1 FROM expiring AS e
                      WHERE e.expires_at = t.expires_at AND e.seq = t.seq)
         UNION ALL
         SELECT 'expiring number ' || seq FROM expiring WHERE seq NOT IN (SELECT seq FROM task)",
    ),
    (
        "live tasks of a schedule are not those it knows",
        "SELECT 'task number ' || t.seq FROM task AS t
         WHERE t.schedule_uid IS NOT NULL AND (t.state = 0) <> EXISTS (
             SELECT 1 FROM schedule_live AS v
             WHERE v.schedule_uid = t.schedule_uid AND v.held = t.held AND v.seq = t.seq)
         UNION ALL
         SELECT 'held task number ' || v.seq || ' has nothing to wait for'
         FROM schedule_live AS v WHERE v.held AND v.schedule_uid <> '00000000-0000-0000-0000-000000000000'
         AND NOT EXISTS (SELECT 1 FROM schedule_live AS a
                         WHERE a.schedule_uid = v.schedule_uid AND NOT a.held)",
    ),
    (
        "failed tasks are not those of the dead-letter table",
        "SELECT 'task number ' || t.seq FROM task AS t
         WHERE (t.state = 3) <> EXISTS (SELECT 1 FROM dead_letter AS d WHERE d.seq = t.seq)
         UNION ALL
         SELECT 'task number ' || t.seq FROM task AS t JOIN dead_letter AS d ON d.seq = t.seq
         WHERE d.failed_at IS DISTINCT FROM t.finished_at OR d.lane <> t.lane
            OR (d.dismissed_at IS NULL) <> (t.dismissed IS NULL)",
    ),
    (
        "attempts are missing",
        "SELECT 'task number ' || t.seq || ': ' || t.attempt || ' attempts' FROM task AS t
         WHERE t.attempt <> (t.outcome IS NOT NULL)::integer
             + (SELECT count(*) FROM attempt AS a WHERE a.seq = t.seq)
         UNION ALL
         SELECT DISTINCT 'attempt of number ' || seq FROM attempt
         WHERE seq NOT IN (SELECT seq FROM task UNION ALL SELECT seq FROM history)
         UNION ALL
         SELECT 'ended task number ' || h.seq FROM history AS h
         WHERE h.attempt <> (h.outcome IS NOT NULL)::integer
             + (SELECT count(*) FROM attempt AS a WHERE a.seq = h.seq)",
    ),
    (
        "a task is open and ended at once, or has ended in a place that is not its own",
        "SELECT 'id ' || t.id FROM task AS t JOIN history AS h ON h.seq = t.seq
         UNION ALL
         SELECT 'task number ' || seq FROM task WHERE state NOT IN (0, 3)
         UNION ALL
         SELECT 'ended task number ' || seq FROM history WHERE state NOT IN (2, 4)",
    ),
    (
        "figures of a lane are not what there is",
        "WITH counted (lane, place, n) AS (
             SELECT lane, 1, count(*) FROM ready GROUP BY lane UNION ALL
             SELECT lane, 2, count(*) FROM scheduled GROUP BY lane UNION ALL
             SELECT lane, 3, count(*) FROM slot WHERE stage > 0 GROUP BY lane UNION ALL
             SELECT t.lane, 4, count(*) FROM schedule_live AS v JOIN task AS t ON t.seq = v.seq
                 WHERE v.held GROUP BY t.lane UNION ALL
             SELECT lane, 6, count(*) FROM history WHERE state = 2 GROUP BY lane UNION ALL
             SELECT lane, 7, count(*) FROM task WHERE state = 3 GROUP BY lane UNION ALL
             SELECT lane, 8, count(*) FROM history WHERE state = 4 GROUP BY lane UNION ALL
             SELECT lane, 9, count(*) FROM dead_letter WHERE dismissed_at IS NULL GROUP BY lane
         ), said AS (SELECT lane, place, sum(n) AS n FROM tally GROUP BY lane, place)
         SELECT 'lane ' || coalesce(c.lane, s.lane) || ' says ' || coalesce(s.n, 0)
                || ' in place ' || coalesce(c.place, s.place) || ', there are ' || coalesce(c.n, 0)
         FROM counted AS c FULL JOIN said AS s ON s.lane = c.lane AND s.place = c.place
         WHERE coalesce(c.n, 0) <> coalesce(s.n, 0)",
    ),
    (
        "a fence was given out twice, or is ahead of the store",
        "SELECT 'fence ' || fence FROM running GROUP BY fence HAVING count(*) > 1
         UNION ALL
         SELECT 'fence ' || fence FROM running WHERE fence > (SELECT last_value FROM fence_seq)",
    ),
    (
        "a schedule's balance does not agree with its occurrences",
        "SELECT name || ': ' || expected || ' expected, ' || decided || ' decided, '
                || recorded || ' recorded, ' || unrecorded || ' not'
         FROM (
             SELECT s.name, s.unrecorded,
                 (s.state::json #>> '{balance,expected}')::bigint AS expected,
                 (s.state::json #>> '{balance,fired}')::bigint
                     + (s.state::json #>> '{balance,coalesced}')::bigint
                     + (s.state::json #>> '{balance,skipped}')::bigint
                     + (s.state::json #>> '{balance,missed}')::bigint AS decided,
                 (SELECT coalesce(sum(o.count), 0) FROM occurrence AS o
                  WHERE o.schedule_uid = s.uid AND o.kind = 'scheduled') AS recorded
             FROM schedule AS s
         ) AS x WHERE expected <> decided OR decided <> recorded + unrecorded",
    ),
];

impl PostgresStore {
    pub(super) async fn contradictions(&self) -> Res<Vec<String>> {
        let lease = self.work.lease().await?;
        let mut found = Vec::new();
        for (what, sql) in CHECKS {
            let path = "SET search_path = matins, pg_temp";
            lease.batch_execute(path).await?;
            for row in lease.query_typed(sql, &[]).await? {
                found.push(format!("{what}: {}", row.try_get::<_, String>(0)?));
            }
        }
        lease.batch_execute("RESET search_path").await?;
        Ok(found)
    }
}
