-- Purpose: takes entries out of the journal that the database has.
-- KEYS: the stream, the tasks that are in it.
-- ARGV: for each entry its place in the stream and the id of its task (empty: none).
for i = 1, #ARGV, 2 do
    redis.call('XDEL', KEYS[1], ARGV[i])
    if ARGV[i + 1] ~= '' then redis.call('HDEL', KEYS[2], ARGV[i + 1]) end
end
return redis.call('XLEN', KEYS[1])
