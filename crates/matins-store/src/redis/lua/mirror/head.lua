-- Purpose: the foremost hints of a pool, taken out of the mirror in the same step. Follows two
-- functions: `hints` of ../take.lua and `take` of take.lua.
-- ARGV: generation, pool, now (us), how many, how many to look at, types (none: any).
-- Answers what `hints` does, and behind each member what `take` says of it.
local pool = ARGV[6]
local said = hints({key('task:pending:' .. pool), key('task:delayed'), key('task:known')},
                   {prefix, unpack(ARGV, 6)})
local about = {ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], '0'}
for i = 4, #said do
    local id, attempt = string.match(said[i], '^[^\t]+\t([^\t]+)\t(%d+)\t')
    about[#about + 1] = id
    about[#about + 1] = attempt
end
local taken = take(about)
local answer = {'ok', said[1], said[2], said[3]}
for i = 4, #said do
    answer[#answer + 1] = said[i]
    answer[#answer + 1] = taken[i - 2]
end
return answer
