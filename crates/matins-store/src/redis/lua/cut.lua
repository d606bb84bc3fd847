-- Purpose: says of lines that they are known up to a place at most: what came in behind it is not
-- told one by one.
-- KEYS: how far each line is known, where lines were cut since they were last read.
-- ARGV: channel and what to say on it (empty: nothing), then line and place by turns.
for i = 3, #ARGV, 2 do
    for _, key in ipairs(KEYS) do
        local bound = tonumber(redis.call('HGET', key, ARGV[i]) or '')
        local is_cut = key == KEYS[2]
        if (bound and tonumber(ARGV[i + 1]) < bound) or (is_cut and not bound) then
            redis.call('HSET', key, ARGV[i], ARGV[i + 1])
        end
    end
end
if ARGV[2] ~= '' then redis.call('PUBLISH', ARGV[1], ARGV[2]) end
return 1
