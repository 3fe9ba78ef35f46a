-- Shared by the scripts: exact arithmetic, and a cell as stored. A cell is a hash: 16 raw bytes of a node's id ->
-- decimal count, 'l' -> lowest limit, and 'b' -> lower bound of the sum. Other fields were not written by Weir; they are left
-- alone and do not count.
-- Doubles represent integers exactly up to 2^53; nothing here computes beyond that.

local MAX = 9007199254740992
local OVER = 9007199254740994 -- the next double, higher than any limit

local KEYS, ARGV = KEYS, ARGV
local call, find, tonumber, unpack = redis.call, string.find, tonumber, unpack

local function number(text)
    if not text or #text > 16 or not find(text, '^%d+$') then return nil end
    local n = tonumber(text)
    if n > MAX then return nil end
    return n
end

-- a + b, or OVER if the sum is above MAX; OVER stays OVER.
local function add(a, b)
    if a > MAX - b then return OVER end
    return a + b
end

-- floor(count * covered / cell) for count <= 2^53 and covered <= cell <= 2^35. The low 17 bits of `covered` are computed apart,
-- because the product does not fit into a double.
local function share(count, covered, cell)
    local rest = math.fmod(count, cell)
    local whole = (count - rest) / cell
    local low = math.fmod(covered, 131072)
    local high = (covered - low) / 131072
    local product = rest * high
    local rest_high = math.fmod(product, cell)
    local quotient_high = (product - rest_high) / cell
    product = rest_high * 131072 + rest * low
    local quotient_low = (product - math.fmod(product, cell)) / cell
    return whole * covered + quotient_high * 131072 + quotient_low
end

local MAX_FIELDS = 8192 -- twice the number that aggregators write into one cell

-- Fields and values in turn, the position of each field's value, and the number of fields and values that were stored.
local function load(key)
    if call('HLEN', key) > MAX_FIELDS then error('this cell has too many fields', 0) end
    local flat, place = call('HGETALL', key), {}
    local size = #flat
    for i = 1, size, 2 do place[flat[i]] = i + 1 end
    return { key = key, flat = flat, place = place, size = size, changed = nil }
end

local function put(cell, field, text)
    local flat, place = cell.flat, cell.place[field]
    if not place then
        place = #flat + 2
        flat[place - 1] = field
        cell.place[field] = place
    end
    flat[place] = text
    local changed = cell.changed
    if changed then
        changed[#changed + 1] = field
        changed[#changed + 1] = text
    else
        cell.changed = { field, text }
    end
end

-- A node's count; nil if there is none.
local function count_of(cell, node)
    local place = cell.place[node]
    return place and number(cell.flat[place])
end

-- Raises one node's count. A 0 is written if there is no count, to show that the node uses the cell. Returns whether
-- the cell now holds exactly this count.
local function raise(cell, node, text)
    local place = cell.place[node]
    if place then
        local stored = cell.flat[place]
        if stored == text then return true end
        stored = number(stored)
        if stored and stored >= tonumber(text) then return false end
    end
    put(cell, node, text)
    return true
end

local function save(cell)
    local changed = cell.changed
    if not changed then return end
    for i = 1, #changed, 2000 do -- unpack takes fewer than 8000 values
        call('HSET', cell.key, unpack(changed, i, math.min(i + 1999, #changed)))
    end
end

local MARGIN_MS = 60000
local MARGIN_SPENT_MS = 15000 -- what was added is used up after this time, and not at each write
local LATE_MS = 1000 -- of two calls at one time, one may arrive so much later

-- Extends the key's life to left_ms from now, and a margin at least. It is what is left by the region's time: this server's clock may be
-- another one, and another one than that of the server that took over or holds another slot.
local function extend(key, left_ms)
    local wanted_ms = tonumber(left_ms) + LATE_MS
    local needed_ms = wanted_ms - LATE_MS
    if needed_ms < MARGIN_MS then
        wanted_ms = MARGIN_MS
        needed_ms = MARGIN_MS - MARGIN_SPENT_MS
    end
    if call('PTTL', key) < needed_ms then call('PEXPIRE', key, string.format('%.0f', wanted_ms)) end
end

-- The same for a cell that was saved. All its writers give it the same end, so only the first has to set it.
local function extend_cell(cell, left_ms)
    if #cell.flat > 0 and (cell.size == 0 or tonumber(left_ms) < MARGIN_MS) then
        extend(cell.key, left_ms)
    end
end

-- The sum of the nodes' counts.
local function sum(cell)
    local total, flat = 0, cell.flat
    for i = 1, #flat, 2 do
        if #flat[i] == 16 then total = add(total, number(flat[i + 1]) or 0) end
    end
    return total
end

-- What the region has used in a cell at least, whatever its nodes' counts add up to: evidence after a loss, and what was used
-- since.
local function lower_bound(cell)
    return count_of(cell, 'b') or 0
end

local function raise_lower_bound(cell, total)
    if total > lower_bound(cell) then put(cell, 'b', string.format('%.0f', math.min(MAX, total))) end
end
