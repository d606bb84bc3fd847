-- Purpose: claims in the dark. Each is journalled in the same step.
-- ARGV: generation, the announcement of whoever claims, lease in ms, then for each: id, attempt
-- before, fence, what is kept of the claim, the entry of the journal.
-- Answers the ids that were claimed.
local generation, note, lease = ARGV[5], ARGV[6], tonumber(ARGV[7])
if redis.call('SISMEMBER', key('mirror:dark'), note) == 0 then return {'other'} end
local answer = {'ok'}
for i = 8, #ARGV, 5 do
    local id, attempt, fence = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local entry = read(id)
    local free = entry and entry.attempt == attempt and entry.generation == generation
    if free and not claim_of(id) then
        remove(id)
        local next_attempt = tonumber(attempt) + 1
        bury(id, next_attempt)
        redis.call('HSET', key('mirror:claims'), id, table.concat(
            {fence, text(next_attempt), generation, ARGV[i + 3]}, '\t'))
        redis.call('ZADD', key('mirror:leases'), text(now_ms + lease), id)
        journal(ARGV[i + 4])
        answer[#answer + 1] = id
    end
end
return answer
