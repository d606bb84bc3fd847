//! Whether the file agrees with itself. Reads everything; for audits and tests.

use rusqlite::params;

use super::error::Res;
use super::reader::Reader;
use super::stats::PLACE_COLUMNS;

/// Each yields a row of text for every contradiction it finds.
const CHECKS: &[(&str, &str)] = &[
    (
        "an open task is not in exactly one place",
        "WITH place (seq, name) AS (
             SELECT seq, 'ready' FROM ready UNION ALL
             SELECT seq, 'scheduled' FROM scheduled UNION ALL
             SELECT seq, 'parked' FROM slot WHERE stage > 0 UNION ALL
             SELECT seq, 'held' FROM schedule_live WHERE held = 1 UNION ALL
             SELECT seq, 'running' FROM running
         ), found AS (
             SELECT t.seq, t.state, count(p.seq) AS places, group_concat(p.name) AS names
             FROM task AS t LEFT JOIN place AS p ON p.seq = t.seq GROUP BY t.seq
         )
         SELECT 'task number ' || seq || ', state ' || state || ': ' || coalesce(names, 'nowhere')
         FROM found WHERE places <> (state = 0)
         UNION ALL
         SELECT 'no row for task number ' || seq || ' in ' || name
         FROM place WHERE seq NOT IN (SELECT seq FROM task)",
    ),
    (
        "a task is in line or due later in a way that its row does not say",
        "SELECT 'task number ' || t.seq FROM ready AS r JOIN task AS t ON t.seq = r.seq
         WHERE t.lane <> r.lane OR t.held = 1
            OR (t.concurrency_key IS NULL AND r.ord <> t.run_at - t.priority * 60000000)
         UNION ALL
         SELECT 'task number ' || t.seq FROM scheduled AS s JOIN task AS t ON t.seq = s.seq
         WHERE t.lane <> s.lane OR t.held = 1 OR t.run_at <> s.run_at
            OR s.keyed <> (t.concurrency_key IS NOT NULL)
            OR s.ord <> t.run_at - t.priority * 60000000
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
         WHERE t.concurrency_key IS NOT s.key OR l.type <> s.type OR t.lane <> s.lane
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
         WHERE k.at IS NULL AND coalesce(t.state, 3) NOT IN (0, 2)
         UNION ALL
         SELECT 'task number ' || t.seq || ' has no hold of its key'
         FROM task AS t JOIN lane AS l ON l.id = t.lane
         WHERE t.state = 0 AND t.execution_key IS NOT NULL AND NOT EXISTS (
             SELECT 1 FROM exec_key AS k
             WHERE k.type = l.type AND k.key = t.execution_key AND k.id = t.id)",
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
         FROM schedule_live AS v WHERE v.held = 1 AND v.schedule_uid <> zeroblob(16)
         AND NOT EXISTS (SELECT 1 FROM schedule_live AS a
                         WHERE a.schedule_uid = v.schedule_uid AND a.held = 0)",
    ),
    (
        "failed tasks are not those of the dead-letter table",
        "SELECT 'task number ' || t.seq FROM task AS t
         WHERE (t.state = 3) <> EXISTS (SELECT 1 FROM dead_letter AS d WHERE d.seq = t.seq)
         UNION ALL
         SELECT 'task number ' || t.seq FROM task AS t JOIN dead_letter AS d ON d.seq = t.seq
         WHERE d.failed_at IS NOT t.finished_at OR d.lane <> t.lane
            OR (d.dismissed_at IS NULL) <> (t.dismissed IS NULL)",
    ),
    (
        "attempts are missing",
        "SELECT 'task number ' || t.seq || ': ' || t.attempt || ' attempts' FROM task AS t
         WHERE t.attempt <> (t.outcome IS NOT NULL)
             + (SELECT count(*) FROM attempt AS a WHERE a.seq = t.seq)
         UNION ALL
         SELECT DISTINCT 'attempt of number ' || seq FROM attempt
         WHERE seq NOT IN (SELECT seq FROM task)",
    ),
    (
        "a fence was given out twice, or is ahead of the store",
        "SELECT 'fence ' || fence FROM running GROUP BY fence HAVING count(*) > 1
         UNION ALL
         SELECT 'fence ' || fence FROM running WHERE fence > (SELECT fence FROM meta)",
    ),
    (
        "a schedule's balance does not agree with its occurrences",
        "SELECT name || ': ' || expected || ' expected, ' || decided || ' decided, '
                || recorded || ' recorded, ' || unrecorded || ' not'
         FROM (
             SELECT s.name, s.unrecorded,
                 json_extract(s.state, '$.balance.expected') AS expected,
                 json_extract(s.state, '$.balance.fired')
                     + json_extract(s.state, '$.balance.coalesced')
                     + json_extract(s.state, '$.balance.skipped')
                     + json_extract(s.state, '$.balance.missed') AS decided,
                 (SELECT coalesce(sum(o.count), 0) FROM occurrence AS o
                  WHERE o.schedule_uid = s.uid AND o.kind = 'scheduled') AS recorded
             FROM schedule AS s
         ) WHERE expected <> decided OR decided <> recorded + unrecorded",
    ),
];

impl Reader {
    pub(super) fn check_invariants(&self) -> Res<Vec<String>> {
        let mut found = Vec::new();
        let damage: Vec<String> = {
            let mut statement = self.conn.prepare("PRAGMA integrity_check(20)")?;
            let rows = statement.query_map(params![], |row| row.get(0))?;
            rows.collect::<rusqlite::Result<_>>()?
        };
        found.extend(damage.into_iter().filter(|text| text != "ok"));
        for (what, sql) in CHECKS {
            let mut statement = self.conn.prepare(sql)?;
            let rows = statement.query_map(params![], |row| row.get::<_, String>(0))?;
            for row in rows {
                found.push(format!("{what}: {}", row?));
            }
        }
        for (_, column) in PLACE_COLUMNS {
            found.extend(self.recount(column)?);
        }
        Ok(found)
    }

    fn recount(&self, column: &str) -> Res<Vec<String>> {
        let source = match column {
            "ready" => "SELECT lane FROM ready",
            "later" => "SELECT lane FROM scheduled",
            "parked" => "SELECT lane FROM slot WHERE stage > 0",
            "held" => {
                "SELECT t.lane FROM schedule_live AS v JOIN task AS t ON t.seq = v.seq
                 WHERE v.held = 1"
            }
            "running" => "SELECT lane FROM running",
            "completed" => "SELECT lane FROM task WHERE state = 2",
            "failed" => "SELECT lane FROM task WHERE state = 3",
            "cancelled" => "SELECT lane FROM task WHERE state = 4",
            _ => "SELECT lane FROM dead_letter WHERE dismissed_at IS NULL",
        };
        let sql = format!(
            "WITH counted AS (SELECT lane, count(*) AS n FROM ({source}) GROUP BY lane)
             SELECT l.id, l.{column}, coalesce(c.n, 0) FROM lane AS l
             LEFT JOIN counted AS c ON c.lane = l.id WHERE l.{column} <> coalesce(c.n, 0)"
        );
        let mut statement = self.conn.prepare(&sql)?;
        let rows = statement.query_map(params![], |row| {
            let (lane, said, counted): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!("lane {lane} says {said} {column}, there are {counted}"))
        })?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}
