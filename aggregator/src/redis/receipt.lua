-- KEYS: a marker. ARGV: the id of its incarnation; the reader; a lane; the number to record; the number that the lane has
-- at least.
-- Each pipeline of writes begins and ends with this. The last call states the number of the first one as the number that
-- the lane has at least: data that were set back meanwhile lack it, and the writes between both. Returns 1 if the marker has
-- the number now, and 0 if it is missing, has another id, lacks the reader, or was set back: the next look finds that.
-- Equivalent to weir_core's Marker::record.

local fields = redis.pcall('HMGET', KEYS[1], 'incarnation', ARGV[2])
if fields.err or not fields[1] or string.sub(fields[1], 1, 32) ~= ARGV[1] then return 0 end
local held = fields[2]
if not held or not string.find(held, '^%d+:%d+[:=%d]*$') then return 0 end
local lane = ':' .. ARGV[3] .. '='
local first, last, number = string.find(held, lane .. '(%d+)')
number = tonumber(number) or 0
if number < tonumber(ARGV[5]) then return 0 end
if number < tonumber(ARGV[4]) then
    local before = first and string.sub(held, 1, first - 1) or held
    local after = last and string.sub(held, last + 1) or ''
    redis.call('HSET', KEYS[1], ARGV[2], before .. lane .. ARGV[4] .. after)
end
return 1
