-- Purpose: a person stops a pool in the dark: nothing of it is claimed there until that is over.
-- ARGV: the announcement of whoever is asked, pool, the entry of the journal.
redis.call('SADD', key('mirror:dark'), ARGV[5])
redis.call('SADD', key('mirror:paused'), ARGV[6])
journal(ARGV[7])
return {'ok'}
