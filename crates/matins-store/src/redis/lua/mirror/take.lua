-- Purpose: before tasks are decided about in the database: nobody can have them in the dark then.
-- ARGV: generation, how many announcements hold nobody up, these, then id and attempt by turns.
-- Answers for each: found, nothing, or wait: only what is surely free may be taken now.
local generation, gone = ARGV[5], {}
local n = tonumber(ARGV[6])
for i = 7, 6 + n do gone[ARGV[i]] = true end
local guarded = redis.call('XLEN', key('journal')) > 0
for _, note in ipairs(redis.call('SMEMBERS', key('mirror:dark'))) do
    if not gone[note] then guarded = true end
end
local ids, attempts = {}, {}
for i = 7 + n, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
    attempts[#attempts + 1] = ARGV[i + 1]
end
local answer = {'ok'}
local taken, index, after = {}, {}, {}
for i, known in ipairs(find('mirror:index', ids)) do
    local attempt, under = string.match(known or '', '^(%d+)\t(%d+)\t')
    local found = attempt == attempts[i] and under == generation
    if guarded and not found then
        answer[#answer + 1] = 'wait'
    else
        taken[#taken + 1] = ids[i]
        index[#index + 1] = known
        after[#after + 1] = tonumber(attempts[i]) + 1
        answer[#answer + 1] = found and 'found' or 'nothing'
    end
end
remove_all(taken, index)
if are_claims() then end_claims(taken) end
bury_all(taken, after)
return answer
