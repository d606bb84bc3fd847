-- Purpose: copies pending tasks and marks here.
-- ARGV: most of them, 1 from a node in the dark (else 0), its announcement, then for each: id,
-- entry, and of a mark the task that holds it ('-': none).
-- Answers how many were taken. One that was taken out meanwhile is not put back.
local cap, dark, note = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7]
if dark then
    redis.call('SADD', key('mirror:dark'), note)
elseif redis.call('XLEN', key('journal')) > 0 or redis.call('SCARD', key('mirror:dark')) > 0 then
    return {'guarded'}
end
local count = 0
for i = 8, #ARGV, 3 do
    local id, entry, holder = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local attempt = tonumber(string.match(entry, '^(%d+)\t'))
    local tomb = tonumber(get('mirror:tomb:' .. id)) or 0
    local room = redis.call('HLEN', key('mirror:tasks')) < cap
    if attempt >= tomb and room and not claim_of(id) then
        put(id, entry)
        if holder == '-' then
            redis.call('HDEL', key('mirror:holders'), id)
        elseif holder ~= '' then
            hold(id, holder)
        end
        count = count + 1
    end
end
return {'ok', text(count)}
