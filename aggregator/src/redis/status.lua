-- KEYS: the aggregators' status records by their ids, each preceded by the server's time at which it was written.
-- ARGV: silent_ms, the aggregator, its record.
-- Returns id, age in milliseconds and record of all others whose record is recent enough.

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f:', now_ms) .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local records = {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
    local at = string.match(fields[i + 1], '^(%d+):')
    local age_ms = at and now_ms - tonumber(at)
    if not age_ms or age_ms > tonumber(ARGV[1]) then
        redis.call('HDEL', KEYS[1], fields[i])
    elseif fields[i] ~= ARGV[2] then
        local record = string.sub(fields[i + 1], #at + 2)
        records[#records + 1] = { fields[i], string.format('%.0f', math.max(age_ms, 0)), record }
    end
end
return records
