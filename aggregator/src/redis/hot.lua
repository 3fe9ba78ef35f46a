-- KEYS: a sorted set of cells by expiry. ARGV: what is left until the last of the expiries, in milliseconds; the most cells to keep; then
-- expiry, by the region's time, and cell in turn.

for i = 3, #ARGV, 2 do redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -(tonumber(ARGV[2]) + 1))
extend(KEYS[1], ARGV[1])
return redis.call('ZCARD', KEYS[1])
