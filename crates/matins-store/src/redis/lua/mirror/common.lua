-- Purpose: what all scripts of the mirror begin with: whose Redis it is, and that it is not late.
-- ARGV: prefix, the store's id, the Redis as the regime has it, until when (its own clock, ms).
-- What follows reads its own arguments from ARGV[5] on.
local prefix, store_id, identity, deadline = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local function key(name) return prefix .. name end
local function get(name) return redis.call('GET', key(name)) or '' end
local function text(number) return string.format('%.0f', number) end

local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if get('store_id') ~= store_id or run_id .. ':' .. get('mirror:epoch') ~= identity then
    return {'other'}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now / 1000)
if now_ms > deadline then return {'late'} end

-- An entry: attempt, generation, place in line, when it is due, pool, type, the task. Of a mark:
-- revision, generation, twice when it is due, the line of marks, a word, the schedule.
local function parse(entry)
    local attempt, generation, order, run_at, pool, kind, task = string.match(entry,
        '^(%d+)\t(%d+)\t(%-?%d+)\t(%-?%d+)\t([^\t]+)\t([^\t]+)\t(.*)$')
    if not attempt then return nil end
    return {attempt = attempt, generation = generation, order = order, run_at = run_at,
            pool = pool, kind = kind, task = task}
end

local function read(id)
    local entry = redis.call('HGET', key('mirror:tasks'), id)
    return entry and parse(entry) or nil
end

local function remove(id)
    local entry = redis.call('HGET', key('mirror:tasks'), id)
    if not entry then return end
    local pool = string.match(entry, '^%d+\t%d+\t%-?%d+\t%-?%d+\t([^\t]+)\t')
    if pool then
        redis.call('ZREM', key('mirror:line:' .. pool), id)
        redis.call('ZREM', key('mirror:later'), id)
    end
    redis.call('HDEL', key('mirror:tasks'), id)
    redis.call('HDEL', key('mirror:index'), id)
end

local function put(id, entry)
    remove(id)
    redis.call('HSET', key('mirror:tasks'), id, entry)
    local e = parse(entry)
    redis.call('HSET', key('mirror:index'), id, e.attempt .. ' ' .. e.generation)
    if tonumber(e.run_at) > now then
        redis.call('ZADD', key('mirror:later'), e.run_at, id)
    else
        redis.call('ZADD', key('mirror:line:' .. e.pool), e.order, id)
    end
end

-- A push of an attempt below it comes too late. Kept for longer than a script may be under way.
local TOMBSTONE_MS = 120000
local function bury(id, attempt)
    local name = 'mirror:tomb:' .. id
    local before = tonumber(get(name)) or 0
    redis.call('SET', key(name), text(math.max(before, attempt)), 'PX', TOMBSTONE_MS)
end

-- A claim made in the dark: fence, attempt, generation, entry.
local function claim_of(id)
    local claim = redis.call('HGET', key('mirror:claims'), id)
    if not claim then return nil end
    local fence, attempt, generation, what = string.match(claim, '^(%d+)\t(%d+)\t(%d+)\t(.*)$')
    return {fence = fence, attempt = attempt, generation = generation, what = what}
end

local function end_claim(id)
    redis.call('HDEL', key('mirror:claims'), id)
    redis.call('ZREM', key('mirror:leases'), id)
    redis.call('SREM', key('mirror:cancels'), id)
end

-- The task that holds a schedule, until it is said to have ended.
local function hold(id, task)
    redis.call('HSET', key('mirror:holders'), id, task)
    redis.call('SADD', key('mirror:holding'), task)
end

local function journal(entry)
    redis.call('XADD', key('journal'), '*', 'entry', entry)
end
