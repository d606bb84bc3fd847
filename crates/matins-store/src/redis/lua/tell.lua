-- Purpose: takes or keeps the right to tell people that PostgreSQL is away.
-- KEYS: who has it. ARGV: the node that asks, for how many milliseconds.
-- Answers 1 when it has the right, 0 when another node has it.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
    return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
