-- KEYS: a log. ARGV: the entry, its cost, the limit, the window in microseconds, the latest time by the server's clock
-- at which the script may run, or ''. Then for each era of that clock: first and last time shown, and the forward steps
-- since. Returns -1 (too late), 0 (denied) or 1 (allowed); the server's time; the log's time; the sum of costs; when
-- the oldest entry was charged; and when the last entry was charged that has to expire before this cost can pass. -1
-- means none. Equivalent to weir_core::region::log::Log::decide.

local MARGIN_MS = 10000
local MAX_WALK = 1000

local key, entry, cost, most, window =
    KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local given = tonumber(time[1]) * 1000000 + tonumber(time[2])
if ARGV[5] ~= '' and given > tonumber(ARGV[5]) then return { -1, given, given, 0, -1, -1 } end

-- The log's time, and whether the server's clock has gone back since it was last stored.
local function pass(log)
    if not log.newest then return given, false end
    local at, since = log.newest, log.newest
    if log.since then at, since = log.since + log.ahead, log.since end
    local ahead = 0
    for i = 6, #ARGV, 3 do
        if since >= tonumber(ARGV[i]) and since <= tonumber(ARGV[i + 1]) then
            ahead = math.max(ahead, tonumber(ARGV[i + 2]))
        end
    end
    return at + math.max(0, given - since - ahead), given < since
end

-- The number of the oldest entries that no longer count, and their cost; nil if the stored sum is inconsistent.
local function leaving(log, cut)
    if log.oldest > cut then return 0, 0 end
    local gone, freed = redis.call('ZCOUNT', key, 0, text(cut)), 0
    if log.total == log.entries then
        freed = gone -- each entry costs one
    else
        walk(key, log.marks, log.marks + gone - 1, function(member) freed = freed + cost_of(member) end)
    end
    if log.total - freed < log.entries - gone then return nil end
    return gone, freed
end

local function measure()
    local log = load(key)
    log.now, log.back = pass(log)
    if not log.newest then return log end
    log.over = log.newest <= log.now - window
    if log.over then
        log.now = given
    else
        log.gone, log.freed = leaving(log, log.now - window)
    end
    return log
end

local function score_at(rank)
    return tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2])
end

-- When the last entry was charged that has to expire before `missing` is free. Too early if more than MAX_WALK have to
-- expire.
local function last_to_leave(first, entries, total, missing)
    local last = -1
    if total == entries then return score_at(first + missing - 1) end
    walk(key, first, first + math.min(entries, MAX_WALK) - 1, function(member, score)
        if missing > 0 then
            last = score
            missing = missing - cost_of(member)
        end
    end)
    return last
end

local log = measure()
if log.newest and not log.over and not log.gone then
    heal(key)
    log = measure()
end
local kept = log.newest and not log.over
local total, oldest, first = 0, -1, 0
if kept then
    total = log.total - log.freed
    first = log.marks + log.gone
    oldest = log.gone > 0 and score_at(first) or log.oldest
end

local charged = kept and redis.call('ZSCORE', key, entry)
charged = charged and tonumber(charged) > log.now - window
local allowed = charged or total + cost <= most
local last = -1
if not allowed and cost <= most then
    last = last_to_leave(first, log.entries - log.gone, total, total + cost - most)
end

-- The decision is final; the writes follow.
local changes = {}
if log.over then redis.call('UNLINK', key) end
if kept and log.gone > 0 then changes = { text(-total), 't' } end
local charges = allowed and not charged and cost > 0
if charges then
    total = total + cost
    if oldest < 0 then oldest = log.now end
    changes = { text(-total), 't', text(log.now), entry }
end
if kept and (log.back or charges and (log.since or log.now ~= given)) then
    local n = #changes
    changes[n + 1], changes[n + 2] = text(-given), 'r'
    changes[n + 3], changes[n + 4] = text(-(ZERO + log.now - given)), 'o'
end
-- If the server's memory is full, it rejects this first write, and thereby all writes.
if #changes > 0 then redis.call('ZADD', key, unpack(changes)) end
if kept and log.gone > 0 then redis.call('ZREMRANGEBYSCORE', key, 0, text(log.now - window)) end
if charges then redis.call('PEXPIRE', key, text(math.ceil(window / 1000) + MARGIN_MS)) end
return { allowed and 1 or 0, given, log.now, total, oldest, last }
