-- Purpose: takes announcements away. ARGV: these.
for i = 5, #ARGV do redis.call('SREM', key('mirror:dark'), ARGV[i]) end
return {'ok'}
