-- Purpose: renews claims made in the dark. ARGV: lease in ms, then id and fence by turns.
-- Answers the ids whose claims do not stand any more.
local answer = {'ok'}
for i = 6, #ARGV, 2 do
    local claim = claim_of(ARGV[i])
    if claim and claim.fence == ARGV[i + 1] then
        redis.call('ZADD', key('mirror:leases'), text(now_ms + tonumber(ARGV[5])), ARGV[i])
    else
        answer[#answer + 1] = ARGV[i]
    end
end
return answer
