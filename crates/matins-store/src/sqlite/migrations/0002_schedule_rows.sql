-- A schedule has about a kilobyte. In a table without rowid that is more than a row's share of a
-- page, and each had an overflow page of its own: 100 000 of them were 470 MB to write.
CREATE TABLE schedule_rows (
    name        TEXT NOT NULL UNIQUE,
    uid         BLOB NOT NULL,
    rev         INTEGER NOT NULL,
    next_due    INTEGER,                      -- NULL unless it is active
    state       TEXT NOT NULL,                -- JSON
    decided     INTEGER NOT NULL,             -- occurrences that its balance counts
    unrecorded  INTEGER NOT NULL              -- of these, without a record: pruned, or imported
) STRICT;
INSERT INTO schedule_rows (name, uid, rev, next_due, state, decided, unrecorded)
SELECT name, uid, rev, next_due, state, decided, unrecorded FROM schedule ORDER BY name;
DROP TABLE schedule;
ALTER TABLE schedule_rows RENAME TO schedule;
CREATE INDEX schedule_due ON schedule (next_due, name) WHERE next_due IS NOT NULL;
CREATE INDEX schedule_uid ON schedule (uid);
