-- KEYS: nodes and aggregators, two sorted sets by the server's time at which each was last reported; the region's time.
-- ARGV: silent_ms; most members of a set; the aggregator's time and its machine's, in microseconds; '1' if it has the
-- region's time already; the aggregator; its nodes.
-- Returns the server's time and the region's, in microseconds, and the live members of both sets. The region's time is
-- stored as `time:server's time:whether one that had it wrote it`, for as long as a window can count. Equivalent to
-- weir_core's SharedTime::agree.

local SLOW_PARTS, FAST_PARTS, LARGE_US = 1000, 100, 60000000
local UNUSABLE_US, IN_USE_US, AHEAD_US, BEHIND_US = 86400000000, 10000000, 1000000, 50000
local KEPT_MS = 70 * 86400000

local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local score = string.format('%.0f', now_ms)
local proposed, machine, is_shared = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'

-- `from`, moved towards `to` by at most `most`.
local function toward(from, to, most)
    return math.max(from - most, math.min(to, from + most))
end

local function after(before, then_us)
    local elapsed = now_us - then_us
    local current = math.max(0, before + elapsed)
    local apart = math.abs(current - proposed)
    local is_machine_right = math.abs(machine - now_us) < LARGE_US
    if is_machine_right and math.abs(current - machine) >= UNUSABLE_US then return machine end
    if not is_shared then
        local is_in_use = elapsed >= 0 and elapsed < IN_USE_US
        return (is_in_use or apart < UNUSABLE_US) and current or proposed
    end
    if proposed > current and apart > BEHIND_US then return proposed end
    elapsed = math.max(0, elapsed)
    if apart > AHEAD_US and apart <= elapsed + AHEAD_US then return proposed end
    local parts = (math.abs(current - machine) > LARGE_US and is_machine_right) and FAST_PARTS or SLOW_PARTS
    return toward(current, machine, math.floor(math.min(elapsed, IN_USE_US) / parts))
end

local stored = redis.pcall('GET', KEYS[3])
local before, then_us, by
if type(stored) == 'string' and #stored <= 36 then
    before, then_us, by = string.match(stored, '^(%d+):(%d+):([01])$')
end
if before and is_shared and by == '0' then before = nil end
local region = string.format('%.0f', before and after(tonumber(before), tonumber(then_us)) or proposed)
if is_shared or not before then
    local value = region .. ':' .. string.format('%.0f', now_us) .. ':' .. ARGV[5]
    redis.call('SET', KEYS[3], value, 'PX', KEPT_MS)
end

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
