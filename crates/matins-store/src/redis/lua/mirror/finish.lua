-- Purpose: ends claims made in the dark.
-- ARGV: for each: id, fence, the task as it waits again (empty: it does not), the entry of the
-- journal (empty: it is handed over to the database).
-- Answers 1 for each that stood, else 0.
local answer = {'ok'}
for i = 5, #ARGV, 4 do
    local id, fence, again, entry = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local claim = claim_of(id)
    if claim and claim.fence == fence then
        end_claims({id})
        if again ~= '' then put(id, again) end
        if entry ~= '' then journal(entry) end
        answer[#answer + 1] = '1'
    else
        answer[#answer + 1] = '0'
    end
end
return answer
