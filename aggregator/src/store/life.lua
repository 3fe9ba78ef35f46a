-- KEYS: a sentinel. ARGV: the id that it gets if it is missing, or is not one.
-- Returns its text, `id:created_ms`, and the server's time. It never expires.

local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local text = redis.call('GET', KEYS[1])
if not text or #text > 48 or not string.find(text, '^' .. string.rep('%x', 32) .. ':%d+$') then
    text = ARGV[1] .. ':' .. now_ms
    redis.call('SET', KEYS[1], text)
end
return { text, now_ms }
