-- Purpose: decides about marks in the dark. Each is journalled in the same step.
-- ARGV: generation, the announcement of whoever decides, most entries, then for each: id, revision
-- before, the mark as it is then (empty: it waits for the database), the entry of the journal, the
-- task that holds it from now on (empty: the one that did), how many tasks, then id and entry of
-- each by turns.
-- Answers the ids that were decided about.
local generation, note, cap = ARGV[5], ARGV[6], tonumber(ARGV[7])
redis.call('SADD', key('mirror:dark'), note)
local answer, i = {'ok'}, 8
while i <= #ARGV do
    local id, revision, mark, journalled = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
    local holder, last = ARGV[i + 4], i + 5 + 2 * tonumber(ARGV[i + 5])
    local found = read(id)
    if found and found.attempt == revision and found.generation == generation then
        remove(id)
        bury(id, tonumber(revision) + 1)
        if mark ~= '' then put(id, mark) end
        if holder ~= '' then hold(id, holder) end
        for j = i + 6, last, 2 do
            if redis.call('HLEN', key('mirror:tasks')) < cap then put(ARGV[j], ARGV[j + 1]) end
        end
        journal(journalled)
        answer[#answer + 1] = id
    end
    i = last + 1
end
return answer
