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
local answer = {'ok'}
for i = 7 + n, #ARGV, 2 do
    local id, attempt = ARGV[i], ARGV[i + 1]
    local entry = read(id)
    local found = entry and entry.attempt == attempt and entry.generation == generation
    if guarded and not found then
        answer[#answer + 1] = 'wait'
    else
        remove(id)
        end_claim(id)
        bury(id, tonumber(attempt) + 1)
        answer[#answer + 1] = found and 'found' or 'nothing'
    end
end
return answer
