-- KEYS: a marker. ARGV: the id of the incarnation that this read may begin; the reader; the id and the number of the
-- last read that was answered to it, or '' and 0; the servers that held markers then, joined by ','; the server's time
-- of that read, or 0; the time after which readers are removed; then of the receipts that were answered to it in this
-- incarnation, lane and number in turn. If one was answered that the marker did not take, number and time are higher than any.
-- An incarnation begins if the marker is missing, was set back, or is held by another server: a hash with the id, the
-- server, what it has of each reader, and the last read of those that were removed. Of a reader it has
-- `reads:last_read_ms`, and `:lane=number` for each lane (receipt.lua). Returns `id:created_ms`, the number of this
-- reader's reads, the server's time, and the server, or ''. The marker never expires. Equivalent to weir_core's Marker::read.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now_ms = string.format('%.0f', now)

-- The first half of an id that INFO states: 32 hexadecimal digits.
local function stated(section, field)
    local info = redis.pcall('INFO', section)
    local id = type(info) == 'string' and string.match(info, '\n' .. field .. ':(%x+)')
    return id and #id >= 32 and string.sub(id, 1, 32)
end

-- This server, as its process and its promotion, or '' if a right or the command is missing.
local NONE = string.rep('0', 32)
local process, earlier = stated('server', 'run_id'), stated('replication', 'master_replid2')
local promotion = earlier == NONE and NONE or stated('replication', 'master_replid')
local server = process and earlier and promotion and process .. promotion or ''

-- Whether this server is not the one that held the marker, and was not known to hold others.
local function has_moved(before)
    if not before or before == server or server == '' then return false end
    if promotion == NONE and string.sub(before, 1, 32) == process then return false end
    return not string.find(ARGV[5], server, 1, true)
end

-- HMGET fails if the key has another type.
local fields = redis.pcall('HMGET', KEYS[1], 'incarnation', 'server', ARGV[2], 'removed')
local incarnation, looks, receipts, removed
if not fields.err and fields[1] then
    incarnation = string.match(fields[1], '^' .. string.rep('%x', 32) .. ':%d+$')
    if fields[3] then looks, receipts = string.match(fields[3], '^(%d+):%d+([:=%d]*)$') end
    removed = fields[4] and tonumber(fields[4])
end
local function lacks_receipt()
    for at = 8, #ARGV, 2 do
        local held = string.match(receipts, ':' .. ARGV[at] .. '=(%d+)')
        if not held or tonumber(held) < tonumber(ARGV[at + 1]) then return true end
    end
end

local answered, answered_receipts = 0, ''
if incarnation then
    local was_set_back
    if string.sub(incarnation, 1, 32) == ARGV[3] then
        answered = tonumber(ARGV[4])
        for at = 8, #ARGV, 2 do
            answered_receipts = answered_receipts .. ':' .. ARGV[at] .. '=' .. ARGV[at + 1]
        end
        if looks then
            was_set_back = tonumber(looks) < answered or lacks_receipt()
        else
            -- Data from before the reader was removed do not state that it was.
            was_set_back = not removed or removed < tonumber(ARGV[6])
        end
    end
    if was_set_back or has_moved(fields[2]) then incarnation = nil end
end
if not incarnation then
    incarnation, looks, receipts, removed = ARGV[1] .. ':' .. now_ms, nil, nil, nil
    answered, answered_receipts = 0, ''
    redis.call('UNLINK', KEYS[1])
    redis.call('HSET', KEYS[1], 'incarnation', incarnation)
end
if server ~= '' and (not looks or server ~= fields[2]) then redis.call('HSET', KEYS[1], 'server', server) end
if not looks then
    -- A reader's first read removes readers that have not read for so long: most of their processes have ended.
    local all = redis.call('HGETALL', KEYS[1])
    for at = 1, #all, 2 do
        local seen = string.match(all[at + 1], '^%d+:(%d+)[:=%d]*$')
        local is_reader = all[at] ~= 'incarnation' and all[at] ~= 'server' and all[at] ~= 'removed'
        if is_reader and (not seen or tonumber(seen) + tonumber(ARGV[7]) < now) then
            redis.call('HDEL', KEYS[1], all[at])
            if seen and tonumber(seen) > (removed or 0) then
                removed = tonumber(seen)
                redis.call('HSET', KEYS[1], 'removed', seen)
            end
        end
    end
end
looks = string.format('%.0f', (tonumber(looks) or answered) + 1)
redis.call('HSET', KEYS[1], ARGV[2], looks .. ':' .. now_ms .. (receipts or answered_receipts))
return { incarnation, looks, now_ms, server }
