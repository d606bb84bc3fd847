-- Purpose: the turn to tell alerts, and the state that was left.
-- Index: desk_pkey.
SELECT mine, state FROM matins.take_turn($1, $2, $3)
