-- Alerts on their way to people, and who tells them. An alert is written with the change that is
-- its cause, and never stands in anybody's way.
CREATE TABLE alert (
    number      INTEGER PRIMARY KEY,          -- order of raising
    at          INTEGER NOT NULL,
    read        INTEGER NOT NULL,             -- the one who tells has it in his state
    rule        TEXT NOT NULL,
    subject     TEXT NOT NULL,
    severity    TEXT NOT NULL,
    resolved    INTEGER NOT NULL,
    facts       TEXT NOT NULL                 -- JSON: [{"name": …, "value": …}, …]
) STRICT;
CREATE INDEX alert_unread ON alert (number) WHERE read = 0;
CREATE INDEX alert_at ON alert (at);

CREATE TABLE desk (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    teller  TEXT NOT NULL,
    until   INTEGER NOT NULL,                 -- his turn
    state   TEXT                              -- JSON: what he left last
) STRICT;
