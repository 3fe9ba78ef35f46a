-- Shared by the scripts of the sliding log: a log as stored in one sorted set. An entry is a member of 20 bytes: its
-- request (16), its place there (1), its cost (3, big-endian). Its score is the log's time in microseconds at which it
-- was charged. Below the entries, with negative scores, are
--   t  the sum of the entries' costs, negated;
--   r, o  only after the server's clock has stepped: its time at the last change, negated, and the lead of the log's
--         time over that, plus ZERO, negated.
-- Other members were not written by Weir. When one is found, it is removed, and the sum is computed again.

local ENTRY_BYTES = 20
local ZERO = 4503599627370496 -- 2^52, higher than any time
local MAX_MEMBERS = 200000 -- twice the number that aggregators write into one log
local CHUNK = 1000

local function cost_of(member)
    local high, middle, low = string.byte(member, 18, 20)
    return high * 65536 + middle * 256 + low
end

local function is_entry(member, score)
    return #member == ENTRY_BYTES and score >= 0 and score < ZERO and cost_of(member) > 0
end

-- Calls each(member, score) for the members from one rank to another.
local function walk(key, from, to, each)
    for first = from, to, CHUNK do
        local some = redis.call('ZRANGE', key, first, math.min(to, first + CHUNK - 1), 'WITHSCORES')
        for i = 1, #some, 2 do each(some[i], tonumber(some[i + 1])) end
    end
end

local function text(number)
    return string.format('%.0f', number)
end

-- Removes members that are not entries, and recomputes the sum.
local function heal(key)
    local count = redis.call('ZCARD', key)
    if count > MAX_MEMBERS then error('this log has too many members', 0) end
    local total, foreign = 0, {}
    walk(key, 0, count - 1, function(member, score)
        if is_entry(member, score) then
            total = total + cost_of(member)
        else
            foreign[#foreign + 1] = member
        end
    end)
    for _, member in ipairs(foreign) do redis.call('ZREM', key, member) end
    if total > 0 then redis.call('ZADD', key, text(-total), 't') end
end

-- Reads both ends of the log; nil if the content cannot be a log.
local function ends(key)
    local head = redis.call('ZRANGE', key, 0, 3, 'WITHSCORES')
    local log = { marks = 0, total = 0 }
    if #head == 0 then return log end
    local marks = {}
    for i = 1, #head, 2 do
        local member, score = head[i], tonumber(head[i + 1])
        if score >= 0 then
            if not is_entry(member, score) then return nil end
            log.oldest = score
            break
        end
        marks[member] = -score
        log.marks = log.marks + 1
    end
    local named = (marks.t and 1 or 0) + (marks.r and 1 or 0) + (marks.o and 1 or 0)
    if not log.oldest or not marks.t or named ~= log.marks or named == 2 then return nil end
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    log.newest = tonumber(last[2])
    if not is_entry(last[1], log.newest) then return nil end
    log.entries = redis.call('ZCARD', key) - log.marks
    log.total = marks.t
    if log.total < log.entries or log.total >= ZERO then return nil end
    if marks.r then
        log.since = marks.r
        log.ahead = marks.o - ZERO
    end
    return log
end

local function load(key)
    local log = ends(key)
    if not log then
        heal(key)
        log = ends(key)
    end
    return log
end
