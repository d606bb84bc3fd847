-- Purpose: what the server that has our keys says of itself.
-- KEYS: any of our keys. ARGV: the section.
return redis.call('INFO', ARGV[1])
