-- KEYS: nodes and aggregators, two sorted sets by the server's time at which each was last reported.
-- ARGV: silent_ms, most members of a set, the aggregator, its nodes.
-- Returns the server's time and the live members of both sets.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local score = string.format('%.0f', now_ms)
local silent = string.format('(%.0f', now_ms - tonumber(ARGV[1]))
redis.call('ZADD', KEYS[2], score, ARGV[3])
for i = 4, #ARGV do redis.call('ZADD', KEYS[1], score, ARGV[i]) end
local alive = {}
for i, key in ipairs(KEYS) do
    redis.call('ZREMRANGEBYSCORE', key, '-inf', silent)
    redis.call('ZREMRANGEBYRANK', key, 0, -(tonumber(ARGV[2]) + 1))
    redis.call('PEXPIRE', key, ARGV[1] * 10)
    alive[i] = redis.call('ZRANGE', key, 0, -1)
end
return { score, alive[1], alive[2] }
