-- Shared by the scripts: exact arithmetic, and a cell as stored. A cell is a hash: 16 raw bytes of a node's id ->
-- decimal count, and 'l' -> lowest limit. Other fields were not written by Weir; they are left alone and do not count.
-- Doubles represent integers exactly up to 2^53; nothing here computes beyond that.

local MAX = 9007199254740992
local OVER = 9007199254740994 -- the next double, higher than any limit

local function number(text)
    if not text or #text > 16 or not string.find(text, '^%d+$') then return nil end
    local n = tonumber(text)
    if n > MAX then return nil end
    return n
end

-- a + b, or OVER if the sum is above MAX; OVER stays OVER.
local function add(a, b)
    if a > MAX - b then return OVER end
    return a + b
end

-- floor(count * covered / cell) for count <= 2^53 and covered <= cell < 2^32. Computed in halves of 16 bits, because
-- the product does not fit into a double.
local function share(count, covered, cell)
    local rest = math.fmod(count, cell)
    local whole = (count - rest) / cell
    local low = math.fmod(covered, 65536)
    local high = (covered - low) / 65536
    local product = rest * high
    local rest_high = math.fmod(product, cell)
    local quotient_high = (product - rest_high) / cell
    product = rest_high * 65536 + rest * low
    local quotient_low = (product - math.fmod(product, cell)) / cell
    return whole * covered + quotient_high * 65536 + quotient_low
end

local MAX_FIELDS = 8192 -- twice the number that aggregators write into one cell

-- Fields and values in turn, the position of each field's value, and each node's count.
local function load(key)
    if redis.call('HLEN', key) > MAX_FIELDS then error('this cell has too many fields', 0) end
    local flat = redis.call('HGETALL', key)
    local place, counts = {}, {}
    for i = 1, #flat, 2 do
        place[flat[i]] = i + 1
        if #flat[i] == 16 then counts[flat[i]] = number(flat[i + 1]) end
    end
    return { key = key, flat = flat, place = place, counts = counts, changed = {} }
end

local function put(cell, field, text)
    local place = cell.place[field]
    if not place then
        place = #cell.flat + 2
        cell.flat[place - 1] = field
        cell.place[field] = place
    end
    cell.flat[place] = text
    cell.changed[field] = text
end

-- Raises one node's count. A 0 is written if there is no count, to show that the node uses the cell.
local function raise(cell, origin, text)
    local count, stored = tonumber(text), cell.counts[origin]
    if stored and stored >= count then return end
    cell.counts[origin] = count
    put(cell, origin, text)
end

local function save(cell)
    local batch = {}
    for field, text in pairs(cell.changed) do
        batch[#batch + 1] = field
        batch[#batch + 1] = text
        if #batch >= 1000 then -- unpack takes fewer than 8000 values
            redis.call('HSET', cell.key, unpack(batch))
            batch = {}
        end
    end
    if #batch > 0 then redis.call('HSET', cell.key, unpack(batch)) end
end

local MARGIN_MS = 60000

-- Extends the key's life until expires_ms, and for at least a minute, because expires_ms is by another machine's clock.
local function extend(key, expires_ms)
    local left_ms = redis.call('PTTL', key)
    if left_ms == -2 then return end
    local time = redis.call('TIME')
    local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    local until_ms = math.max(tonumber(expires_ms), now_ms + MARGIN_MS)
    if left_ms < 0 or now_ms + left_ms < until_ms then
        redis.call('PEXPIREAT', key, string.format('%.0f', until_ms))
    end
end

local function sum(counts)
    local total = 0
    for _, count in pairs(counts) do total = add(total, count) end
    return total
end
