-- Purpose: which Redis this is, what time it has, and who has announced to work in the dark.
-- ARGV: prefix, the store's id, an epoch in case there is none.
local function key(name) return ARGV[1] .. name end
if redis.call('GET', key('store_id')) ~= ARGV[2] then return {'other'} end
redis.call('SET', key('mirror:epoch'), ARGV[3], 'NX')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local answer = {'ok', run_id .. ':' .. redis.call('GET', key('mirror:epoch')),
                string.format('%.0f', now_ms)}
for _, note in ipairs(redis.call('SMEMBERS', key('mirror:dark'))) do
    if string.match(note, '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$') then
        answer[#answer + 1] = note
    else
        -- No member wrote that.
        redis.call('SREM', key('mirror:dark'), note)
    end
end
return answer
