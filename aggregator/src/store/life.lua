-- KEYS: a sentinel. ARGV: the id that it gets if it is missing, or is not one.
-- Counts this look, so that older data that took the server's place is known by a lower count.
-- Returns `id:created_ms`, how often it was looked at, and the server's time. It never expires.

local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local text = redis.call('GET', KEYS[1])
local life, looks
if text and #text <= 64 then
    life, looks = string.match(text, '^(' .. string.rep('%x', 32) .. ':%d+):(%d+)$')
end
if not life then life, looks = ARGV[1] .. ':' .. now_ms, '0' end
looks = string.format('%.0f', tonumber(looks) + 1)
redis.call('SET', KEYS[1], life .. ':' .. looks)
return { life, looks, now_ms }
