-- KEYS: nodes and aggregators, two sorted sets by the server's time at which each was last reported; the region's time.
-- ARGV: silent_ms; most members of a set; the aggregator's time and its machine's, in microseconds; '1' if it has the
-- region's time already; the aggregator; its nodes.
-- Returns the server's time and the region's, in microseconds, and the live members of both sets. The region's time is
-- stored as `time:server's time`, for as long as a window can count. Equivalent to weir_core's SharedTime::agree.

local SLOW_PARTS, FAST_PARTS, LARGE_US = 1000, 100, 60000000
local UNUSABLE_US, IN_USE_US, AHEAD_US, BEHIND_US, APPROACH_US = 86400000000, 10000000, 1000000, 50000, 10000
local KEPT_MS = 70 * 86400000

local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local score = string.format('%.0f', now_ms)

-- `from`, moved towards `to` by at most `most`.
local function toward(from, to, most)
    return math.max(from - most, math.min(to, from + most))
end

local function region_us(proposed, machine, is_shared)
    local stored = redis.pcall('GET', KEYS[3])
    local before, then_us
    if type(stored) == 'string' then before, then_us = string.match(stored, '^(%d+):(%d+)$') end
    if not before then return proposed end
    local elapsed = math.max(0, now_us - tonumber(then_us))
    local current = tonumber(before) + now_us - tonumber(then_us)
    local apart = math.abs(current - proposed)
    if not is_shared then
        return (elapsed < IN_USE_US or apart < UNUSABLE_US) and current or proposed
    end
    if apart > (current > proposed and AHEAD_US or BEHIND_US) then return toward(proposed, current, APPROACH_US) end
    local parts = math.abs(current - machine) > LARGE_US and FAST_PARTS or SLOW_PARTS
    return toward(current, machine, math.floor(math.min(elapsed, IN_USE_US) / parts))
end

local region = string.format('%.0f', region_us(tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'))
redis.call('SET', KEYS[3], region .. ':' .. string.format('%.0f', now_us), 'PX', KEPT_MS)

local silent = string.format('(%.0f', now_ms - tonumber(ARGV[1]))
redis.call('ZADD', KEYS[2], score, ARGV[6])
for i = 7, #ARGV do redis.call('ZADD', KEYS[1], score, ARGV[i]) end
local alive = {}
for i = 1, 2 do
    redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', silent)
    redis.call('ZREMRANGEBYRANK', KEYS[i], 0, -(tonumber(ARGV[2]) + 1))
    redis.call('PEXPIRE', KEYS[i], ARGV[1] * 10)
    alive[i] = redis.call('ZRANGE', KEYS[i], 0, -1)
end
return { string.format('%.0f', now_us), region, alive[1], alive[2] }
