-- Purpose: takes the foremost hints of a pool, as far as they are known to be all there is.
-- KEYS: the pool's line, what is due later, how far each line is known.
-- ARGV: prefix, pool, now (us), how many, how many to look at, types (none: any).
-- Answers: a word, when something is due next, hints left, then members.
--   unknown: the database must be asked      all: there is no more
--   full: as many as asked for               short: something stands in the way of more
local pending, later, known = KEYS[1], KEYS[2], KEYS[3]
local prefix, pool, now = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max, look = tonumber(ARGV[4]), tonumber(ARGV[5])
local bound = tonumber(redis.call('HGET', known, pool) or '')
local horizon = tonumber(redis.call('HGET', known, '\tlater') or '')
if not bound or not horizon or now >= horizon then return {'unknown', '', '0'} end

-- What has become due goes into its line.
local due = redis.call('ZRANGEBYSCORE', later, '-inf', now, 'WITHSCORES', 'LIMIT', 0, 512)
for i = 1, #due, 2 do
    local member, run_at = due[i], tonumber(due[i + 1])
    local _, _, _, priority, line = string.match(member,
        '^(%x+)([.!])\t([^\t]+)\t%d+\t(%-?%d+)\t([^\t]+)\t(.+)$')
    if line then
        local order = run_at - tonumber(priority) * 60000000
        local edge = tonumber(redis.call('HGET', known, line) or '')
        if not edge or order < edge then
            redis.call('ZADD', prefix .. 'task:pending:' .. line, string.format('%.0f', order), member)
        end
    end
    redis.call('ZREM', later, member)
end
if #due == 1024 then return {'unknown', '', '0'} end

local types = nil
if ARGV[6] then
    types = {}
    for i = 6, #ARGV do types[ARGV[i]] = true end
end
local taken, gone, word = {}, {}, 'all'
local seen = redis.call('ZRANGE', pending, 0, look - 1, 'WITHSCORES')
for i = 1, #seen, 2 do
    local member, order = seen[i], tonumber(seen[i + 1])
    local _, mark, _, _, line, kind = string.match(member,
        '^(%x+)([.!])\t([^\t]+)\t%d+\t(%-?%d+)\t([^\t]+)\t(.+)$')
    if order >= bound or mark == '!' then word = 'short' break end
    if line ~= pool then
        gone[#gone + 1] = member
    elseif not types or types[kind] then
        gone[#gone + 1] = member
        taken[#taken + 1] = member
        if #taken == max then word = 'full' break end
    end
end
if word == 'all' and (#seen == 2 * look or bound < 9e15) then word = 'short' end
for i = 1, #gone, 1000 do
    redis.call('ZREM', pending, unpack(gone, i, math.min(i + 999, #gone)))
end
local next_due = redis.call('ZRANGE', later, 0, 0, 'WITHSCORES')[2]
if not next_due and horizon < 9e15 then next_due = string.format('%.0f', horizon) end
local answer = {word, next_due or '', tostring(redis.call('ZCARD', pending))}
for i = 1, #taken do answer[3 + i] = taken[i] end
return answer
