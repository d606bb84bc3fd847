-- Purpose: a claim.
-- Index: primary key.
INSERT INTO running (
    seq, fence, token, worker, lane, claimed_at, lease_until, cancel_requested_at, tied
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
