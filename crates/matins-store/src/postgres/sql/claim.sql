-- Purpose: tasks from the head of the line.
-- Index: see the function.
SELECT c.fence, NULL::bigint AS token, NULL::text AS run_worker, NULL::timestamptz AS claimed_at,
       NULL::timestamptz AS run_cancel_requested_at, l.pool, l.type, (c.t).*, c.next_at,
       r.claimed_at, r.cancel_requested_at
FROM matins.claim($1, $2, $3, $4, $5, $6, $7, $8, $9) AS c
LEFT JOIN LATERAL matins.find_lane((c.t).lane) AS l ON c.fence IS NOT NULL
LEFT JOIN LATERAL matins.find_run((c.t).id) AS r ON c.fence IS NOT NULL
ORDER BY c.fence
