-- Purpose: writes entries into the journal, all or none.
-- KEYS: the stream, the tasks that are in it, the store's id.
-- ARGV: whose journal it is, then id of the task and sealed entry by turns.
-- Answers 0 when it is another store's Redis.
redis.call('SETNX', KEYS[3], ARGV[1])
if redis.call('GET', KEYS[3]) ~= ARGV[1] then
    return 0
end
for i = 2, #ARGV, 2 do
    redis.call('XADD', KEYS[1], '*', 'entry', ARGV[i + 1])
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return 1
