-- Purpose: whose turn it is to tell, until when, and the state he left.
-- Index: primary key.
SELECT teller, until, state FROM desk WHERE one = 1
