-- Purpose: puts hints into their lines and tells the other nodes.
-- KEYS: what is due later, how far each line is known.
-- ARGV: prefix, most hints of a line, channel and what to say on it (empty: nothing), whether the
-- tasks are new and stand nowhere else, then by turns the place in line, when it is due if that is
-- later (else empty), and the member.
-- A line that is full keeps its foremost: it is then known up to the first that was left out.
local later, known = KEYS[1], KEYS[2]
local prefix, cap = ARGV[1], tonumber(ARGV[2])

local bounds, sizes = {}, {}
local function put(key, field, score, member)
    if bounds[field] == nil then
        bounds[field] = tonumber(redis.call('HGET', known, field) or '') or false
        sizes[field] = redis.call('ZCARD', key)
    end
    if bounds[field] and tonumber(score) >= bounds[field] then return end
    sizes[field] = sizes[field] + redis.call('ZADD', key, score, member)
    if sizes[field] <= cap then return end
    local last = redis.call('ZPOPMAX', key)
    sizes[field] = sizes[field] - 1
    if bounds[field] then
        bounds[field] = tonumber(last[2])
        redis.call('HSET', known, field, string.format('%.0f', bounds[field]))
    end
end

local new = ARGV[5] == '1'
for i = 6, #ARGV, 3 do
    local order, run_at, member = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local seq, mark, rest, pool = string.match(member,
        '^(%x+)([.!])(\t[^\t]+\t%d+\t%-?%d+\t([^\t]+)\t.+)$')
    local pending = prefix .. 'task:pending:' .. pool
    if not new then
        local twin = seq .. (mark == '.' and '!' or '.') .. rest
        redis.call('ZREM', pending, twin, run_at == '' and twin or member)
        redis.call('ZREM', later, twin, run_at == '' and member or twin)
    end
    if run_at == '' then
        put(pending, pool, order, member)
    else
        put(later, '\tlater', run_at, member)
    end
end
if ARGV[4] ~= '' then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
return 1
