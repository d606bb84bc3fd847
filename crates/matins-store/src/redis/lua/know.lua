-- Purpose: says how far lines are known, unless hints may have been lost since the stamp was read.
-- KEYS: how far each line is known, the stamp.
-- ARGV: the stamp as it was read, then line and bound by turns (no bound: not known).
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
    if ARGV[i + 1] == '' then
        redis.call('HDEL', KEYS[1], ARGV[i])
    else
        redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    end
end
return 1
