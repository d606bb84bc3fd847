-- Purpose: alerts whose time is over go; how many, and whether there are more.
-- Index: alert_at, range.
WITH old AS MATERIALIZED (
    SELECT number FROM matins.alert WHERE at <= $1 ORDER BY at, number LIMIT $2 + 1
), gone AS (
    DELETE FROM matins.alert WHERE number = ANY(ARRAY(SELECT number FROM old LIMIT $2))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM old) > $2
