-- Purpose: takes entries out that need not be here: id and "attempt generation" by turns.
local count = 0
for i = 5, #ARGV, 2 do
    if redis.call('HGET', key('mirror:index'), ARGV[i]) == ARGV[i + 1] then
        remove(ARGV[i])
        count = count + 1
    end
end
return {'ok', text(count)}
