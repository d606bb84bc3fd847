-- Purpose: says how far lines are known, unless hints may have been lost since the stamp was read.
-- KEYS: how far each line is known, the stamp, where lines were cut meanwhile.
-- ARGV: the stamp as it was read, then line and bound by turns (no bound: not known).
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
    local bound = ARGV[i + 1]
    local cut = redis.call('HGET', KEYS[3], ARGV[i])
    if bound == '' then
        redis.call('HDEL', KEYS[1], ARGV[i])
    elseif cut and tonumber(cut) < tonumber(bound) then
        redis.call('HSET', KEYS[1], ARGV[i], cut)
    else
        redis.call('HSET', KEYS[1], ARGV[i], bound)
    end
end
return 1
