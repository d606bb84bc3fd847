-- Purpose: puts hints into their lines and tells the other nodes.
-- KEYS: what is due later, how far each line is known.
-- ARGV: prefix, most hints of a line, channel and what to say on it (empty: nothing), then by
-- turns the place in line, when it is due if that is later (else empty), and the member.
-- A line that is full keeps its foremost: it is then known up to the first that was left out.
local later, known = KEYS[1], KEYS[2]
local prefix, cap = ARGV[1], tonumber(ARGV[2])

local function put(key, field, score, member)
    local bound = tonumber(redis.call('HGET', known, field) or '')
    if bound and tonumber(score) >= bound then return end
    redis.call('ZADD', key, score, member)
    if redis.call('ZCARD', key) <= cap then return end
    local last = redis.call('ZPOPMAX', key)
    if bound then redis.call('HSET', known, field, string.format('%.0f', tonumber(last[2]))) end
end

for i = 5, #ARGV, 3 do
    local order, run_at, member = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local seq, mark, rest, pool = string.match(member,
        '^(%x+)([.!])(\t[^\t]+\t%-?%d+\t([^\t]+)\t.+)$')
    local pending = prefix .. 'task:pending:' .. pool
    local twin = seq .. (mark == '.' and '!' or '.') .. rest
    redis.call('ZREM', pending, twin)
    redis.call('ZREM', later, twin)
    if run_at == '' then
        redis.call('ZREM', later, member)
        put(pending, pool, order, member)
    else
        redis.call('ZREM', pending, member)
        put(later, '\tlater', run_at, member)
    end
end
if ARGV[4] ~= '' then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
return 1
