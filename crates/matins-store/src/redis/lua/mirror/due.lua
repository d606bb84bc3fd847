-- Purpose: what of a pool may be claimed now, in order. Changes no task.
-- ARGV: generation, pool, how many, lowest fence (empty: nothing will be claimed in the dark), the
-- announcement of whoever asks, types.
-- Answers: the fence before the first, then id, attempt and task by turns.
local generation, pool, max = ARGV[5], ARGV[6], tonumber(ARGV[7])
local due = redis.call('ZRANGEBYSCORE', key('mirror:later'), '-inf', text(now), 'LIMIT', 0, 500)
for _, id in ipairs(due) do
    local entry = read(id)
    redis.call('ZREM', key('mirror:later'), id)
    if entry then redis.call('ZADD', key('mirror:line:' .. entry.pool), entry.order, id) end
end
local types = {}
for i = 10, #ARGV do types[ARGV[i]] = true end
local answer = {'ok', '0'}
local waits = {}
if redis.call('SISMEMBER', key('mirror:paused'), pool) == 0 then
    waits = redis.call('ZRANGE', key('mirror:line:' .. pool), 0, max + 500)
end
for _, id in ipairs(waits) do
    local entry = read(id)
    if not entry then
        redis.call('ZREM', key('mirror:line:' .. pool), id)
    elseif entry.generation == generation and types[entry.kind] then
        answer[#answer + 1] = id
        answer[#answer + 1] = entry.attempt
        answer[#answer + 1] = entry.task
        if #answer >= 2 + 3 * max then break end
    end
end
if ARGV[8] ~= '' then
    redis.call('SADD', key('mirror:dark'), ARGV[9])
    local floor = tonumber(ARGV[8])
    local fence = math.max(tonumber(get('mirror:fence')) or 0, floor)
    -- Out of all reason: somebody else wrote it. None of those that were handed out is met again.
    if fence > floor + 2 ^ 44 then fence = floor + 2 ^ 43 + now_ms % 2 ^ 42 end
    redis.call('SET', key('mirror:fence'), text(fence + max))
    answer[2] = text(fence)
end
return answer
