-- KEYS: the cell. ARGV: expires_ms, the lower bound of the sum, the field of the baseline. Returns the same as
-- merge.lua.

local cell = load(KEYS[1])
if not cell.counts[ARGV[3]] then
    local missing = tonumber(ARGV[2]) - sum(cell.counts)
    if missing > 0 then
        raise(cell, ARGV[3], string.format('%.0f', missing))
        save(cell)
    end
end
extend(KEYS[1], ARGV[1])
return { -1, cell.flat, {} }
