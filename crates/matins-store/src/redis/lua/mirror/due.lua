-- Purpose: what of a pool may be claimed now, in order. Changes no task.
-- ARGV: generation, pool, how many, lowest fence (empty: nothing will be claimed in the dark), the
-- announcement of whoever asks, types.
-- Answers: the fence before the first, then id, attempt and task by turns.
local generation, pool, max = ARGV[5], ARGV[6], tonumber(ARGV[7])
local due = redis.call('ZRANGEBYSCORE', key('mirror:later'), '-inf', text(now), 'LIMIT', 0, 500)
for _, id in ipairs(due) do
    local entry = read(id)
    redis.call('ZREM', key('mirror:later'), id)
    if entry then redis.call('ZADD', key(line_of(entry.pool)), entry.order, id) end
end
local types = {}
for i = 10, #ARGV do types[ARGV[i]] = true end
local answer, line = {'ok', '0'}, key(line_of(pool))

-- A part of the line from there on. Whether more may be found behind it.
local PART, MOST = 1000, 20000
local function hand_out(from)
    local ids = redis.call('ZRANGE', line, from, from + PART - 1)
    for i, known in ipairs(find('mirror:index', ids)) do
        local under, kind = string.match(known or '', '^%d+\t(%d+)\t[01]\t([^\t]+)\t')
        local entry = under == generation and types[kind] and read(ids[i])
        if entry then
            answer[#answer + 1] = ids[i]
            answer[#answer + 1] = entry.attempt
            answer[#answer + 1] = entry.task
            if #answer >= 2 + 3 * max then return false end
        elseif not known and not read(ids[i]) then
            redis.call('ZREM', line, ids[i])
        end
    end
    return #ids == PART
end
if redis.call('SISMEMBER', key('mirror:paused'), pool) == 0 then
    -- Also past many of types that whoever asks does not run.
    local from = 0
    while from < MOST and hand_out(from) do from = from + PART end
end
if ARGV[8] ~= '' then
    redis.call('SADD', key('mirror:dark'), ARGV[9])
    -- Above all that were handed out, also if somebody took the last one away or wrote another: no
    -- more than 64 are in a millisecond.
    local floor = tonumber(ARGV[8])
    local fence, last = floor + now_ms % 2 ^ 31 * 64, tonumber(get('mirror:fence'))
    if last and last > fence and last <= floor + 2 ^ 44 then fence = last end
    redis.call('SET', key('mirror:fence'), text(fence + max))
    answer[2] = text(fence)
end
return answer
