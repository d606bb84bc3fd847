-- Purpose: claims made in the dark whose leases have ended. ARGV: how many. Answers what is kept of
-- each.
local answer = {'ok'}
local ids = redis.call('ZRANGEBYSCORE', key('mirror:leases'), '-inf', '(' .. text(now_ms),
    'LIMIT', 0, tonumber(ARGV[5]))
for _, id in ipairs(ids) do
    local claim = claim_of(id)
    if claim then
        answer[#answer + 1] = claim.what
    else
        redis.call('ZREM', key('mirror:leases'), id)
    end
end
return answer
