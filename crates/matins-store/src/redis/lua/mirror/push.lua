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
local ids = {}
for i = 8, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local tombs, claims = tombs_of(ids), are_claims() and find('mirror:claims', ids) or {}
local count, new, entries, index = redis.call('HLEN', key('mirror:tasks')), {}, {}, {}
for i, had in ipairs(find('mirror:index', ids)) do
    local entry, holder = ARGV[6 + 3 * i], ARGV[7 + 3 * i]
    local attempt = tonumber(string.match(entry, '^(%d+)\t'))
    if attempt >= tombs[i] and not claims[i] and count < cap then
        if not had then count = count + 1 end
        new[#new + 1] = ids[i]
        entries[#entries + 1] = entry
        index[#index + 1] = had
        if holder == '-' then
            redis.call('HDEL', key('mirror:holders'), ids[i])
        elseif holder ~= '' then
            hold(ids[i], holder)
        end
    end
end
put_all(new, entries, index)
return {'ok', text(#new)}
