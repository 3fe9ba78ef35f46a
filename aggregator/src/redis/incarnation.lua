-- KEYS: a marker. ARGV: the id to use if the marker is missing or is to be renewed; the reader; the id to renew, or ''.
-- Counts this read for its reader, so that a server set back to older data is detected by a lower count. Returns
-- `id:created_ms`, the number of this reader's reads, and the server's time. The marker never expires.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_ms = string.format('%.0f', now)
-- HMGET fails if the key has another type.
local fields = redis.pcall('HMGET', KEYS[1], 'incarnation', ARGV[2])
local incarnation, looks
if not fields.err and fields[1] then
    incarnation = string.match(fields[1], '^' .. string.rep('%x', 32) .. ':%d+$')
    looks = fields[2] and string.match(fields[2], '^(%d+):%d+$')
end
if not incarnation or string.sub(incarnation, 1, 32) == ARGV[3] then
    incarnation, looks = ARGV[1] .. ':' .. now_ms, nil
    redis.call('UNLINK', KEYS[1])
    redis.call('HSET', KEYS[1], 'incarnation', incarnation)
end
if not looks then
    -- A reader's first read removes readers that have not read for an hour: their processes have ended.
    local all = redis.call('HGETALL', KEYS[1])
    for at = 1, #all, 2 do
        local seen = string.match(all[at + 1], '^%d+:(%d+)$')
        if all[at] ~= 'incarnation' and (not seen or tonumber(seen) + 3600000 < now) then
            redis.call('HDEL', KEYS[1], all[at])
        end
    end
end
looks = string.format('%.0f', (tonumber(looks) or 0) + 1)
redis.call('HSET', KEYS[1], ARGV[2], looks .. ':' .. now_ms)
return { incarnation, looks, now_ms }
