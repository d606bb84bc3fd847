-- Purpose: the turn to tell alerts, the state that was left, and alerts that wait to be told, the
-- first raised first.
-- Index: desk_pkey; alert_unread, in order.
SELECT u.number, u.at, u.rule, u.subject, u.severity, u.resolved, u.facts, t.mine, t.state
FROM matins.take_turn($1, $2, $3) AS t
LEFT JOIN LATERAL (
    SELECT number, at, rule, subject, severity, resolved, facts FROM matins.alert
    WHERE NOT read ORDER BY number LIMIT $4) AS u ON t.mine
ORDER BY u.number
