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

-- Many at once: a call out of a script costs more than all that one member takes.
local function in_parts(list, part)
    for i = 1, #list, 1000 do part(unpack(list, i, math.min(i + 999, #list))) end
end

local function tell(command, name, list)
    in_parts(list, function(...) redis.call(command, key(name), ...) end)
end

-- Of each id what a hash has of it, or false.
local function find(name, ids)
    local all = {}
    in_parts(ids, function(...)
        for _, found in ipairs(redis.call('HMGET', key(name), ...)) do all[#all + 1] = found end
    end)
    return all
end

-- The line of a pool. If somebody else wrote it, it goes, and this Redis counts as another one,
-- because what stood in it is lost.
local function line_of(pool)
    local name = 'mirror:line:' .. pool
    local kind = redis.call('TYPE', key(name)).ok
    if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', key(name), key('mirror:epoch')) end
    return name
end

-- Takes ids out. `index`: what the index has of each: attempt, generation, whether it went to those
-- of later, type, pool.
local function remove_all(ids, index)
    -- Otherwise somebody else wrote into one of them.
    local sound = redis.call('HLEN', key('mirror:tasks')) == redis.call('HLEN', key('mirror:index'))
    local gone, later, lines = {}, {}, {}
    for i, id in ipairs(ids) do
        if index[i] or not sound then
            local late, pool = string.match(index[i] or '', '^%d+\t%d+\t([01])\t[^\t]+\t(.+)$')
            if pool then
                lines[pool] = lines[pool] or {}
                table.insert(lines[pool], id)
            end
            if late ~= '0' then later[#later + 1] = id end
            gone[#gone + 1] = id
        end
    end
    for pool, line in pairs(lines) do tell('ZREM', line_of(pool), line) end
    tell('ZREM', 'mirror:later', later)
    tell('HDEL', 'mirror:tasks', gone)
    tell('HDEL', 'mirror:index', gone)
end

local function remove(id) remove_all({id}, find('mirror:index', {id})) end

-- Puts entries in, each of another id. `had`: what the index has of these.
local function put_all(ids, entries, had)
    remove_all(ids, had)
    local tasks, index, later, lines = {}, {}, {}, {}
    for i, id in ipairs(ids) do
        local attempt, generation, order, run_at, pool, kind = string.match(entries[i],
            '^(%d+)\t(%d+)\t(%-?%d+)\t(%-?%d+)\t([^\t]+)\t([^\t]+)\t')
        local late = tonumber(run_at) > now
        local line, place = later, run_at
        if not late then
            lines[pool] = lines[pool] or {}
            line, place = lines[pool], order
        end
        line[#line + 1] = place
        line[#line + 1] = id
        tasks[#tasks + 1] = id
        tasks[#tasks + 1] = entries[i]
        index[#index + 1] = id
        index[#index + 1] = table.concat(
            {attempt, generation, late and '1' or '0', kind, pool}, '\t')
    end
    tell('HSET', 'mirror:tasks', tasks)
    tell('HSET', 'mirror:index', index)
    tell('ZADD', 'mirror:later', later)
    for pool, line in pairs(lines) do tell('ZADD', line_of(pool), line) end
end

local function put(id, entry) put_all({id}, {entry}, find('mirror:index', {id})) end

-- Tombs: a push of an attempt below one comes too late. They lie in a slice for each minute, and are
-- kept for another one at least: longer than a script may be under way.
local TOMB_SLICES = 3
local function slice(minute) return 'mirror:tombs:' .. text(minute % TOMB_SLICES) end

-- Of each id the lowest attempt that may be pushed.
local function tombs_of(ids)
    local tombs = {}
    for i = 1, #ids do tombs[i] = 0 end
    for n = 0, TOMB_SLICES - 1 do
        if redis.call('EXISTS', key(slice(n))) == 1 then
            for i, found in ipairs(find(slice(n), ids)) do
                if found then tombs[i] = math.max(tombs[i], tonumber(found) or 0) end
            end
        end
    end
    return tombs
end

local function bury_all(ids, attempts)
    local minute, new = math.floor(now_ms / 60000), {}
    for i, before in ipairs(find(slice(minute), ids)) do
        new[2 * i - 1] = ids[i]
        new[2 * i] = text(math.max(tonumber(before) or 0, attempts[i]))
    end
    tell('HSET', slice(minute), new)
    if #new > 0 then
        redis.call('PEXPIREAT', key(slice(minute)), text((minute + 2) * 60000))
    end
end

local function bury(id, attempt) bury_all({id}, {attempt}) end

-- A claim made in the dark: fence, attempt, generation, entry.
local function claim_of(id)
    local claim = redis.call('HGET', key('mirror:claims'), id)
    if not claim then return nil end
    local fence, attempt, generation, what = string.match(claim, '^(%d+)\t(%d+)\t(%d+)\t(.*)$')
    return {fence = fence, attempt = attempt, generation = generation, what = what}
end

local function are_claims() return redis.call('EXISTS', key('mirror:claims')) == 1 end

local function end_claims(ids)
    tell('HDEL', 'mirror:claims', ids)
    tell('ZREM', 'mirror:leases', ids)
    tell('SREM', 'mirror:cancels', ids)
end

-- The task that holds a schedule, until it is said to have ended.
local function hold(id, task)
    redis.call('HSET', key('mirror:holders'), id, task)
    redis.call('SADD', key('mirror:holding'), task)
end

local function journal(entry)
    redis.call('XADD', key('journal'), '*', 'entry', entry)
end
