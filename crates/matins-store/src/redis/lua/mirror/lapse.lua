-- Purpose: ends the leases of claims whose holder is gone. ARGV: id and fence by turns.
for i = 5, #ARGV, 2 do
    local claim = claim_of(ARGV[i])
    if claim and claim.fence == ARGV[i + 1] then
        redis.call('ZADD', key('mirror:leases'), 0, ARGV[i])
    end
end
return {'ok'}
