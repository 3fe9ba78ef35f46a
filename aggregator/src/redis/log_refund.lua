-- KEYS: a log. ARGV: an entry. Returns 1 if the entry existed and was removed, else 0.

local key, entry = KEYS[1], ARGV[1]
local log = load(key)
if not redis.call('ZSCORE', key, entry) then return 0 end
local total = log.total - cost_of(entry)
if log.entries == 1 then
    redis.call('UNLINK', key)
else
    redis.call('ZREM', key, entry)
    redis.call('ZADD', key, text(-total), 't')
end
return 1
