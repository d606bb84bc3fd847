-- Purpose: a person cancels tasks in the dark. Each is journalled in the same step.
-- ARGV: generation, the announcement of whoever is asked, then for each: id, attempt, the fence of
-- its claim (empty: it waits), the entry of the journal.
-- Answers 1 for each that was as it is said here, else 0: that one is as it was.
local generation, note = ARGV[5], ARGV[6]
redis.call('SADD', key('mirror:dark'), note)
local answer = {'ok'}
for i = 7, #ARGV, 4 do
    local id, attempt, fence, entry = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local found, claim = read(id), claim_of(id)
    local stands = false
    if fence == '' then
        stands = found and found.attempt == attempt and found.generation == generation
        if stands then
            remove(id)
            bury(id, tonumber(attempt) + 1)
        end
    elseif claim and claim.fence == fence then
        stands = true
        redis.call('SADD', key('mirror:cancels'), id)
    end
    if stands then journal(entry) end
    answer[#answer + 1] = stands and '1' or '0'
end
return answer
