-- KEYS: the cell. ARGV: what is left until the cell expires, in milliseconds; the lower bound of the sum; the field of the baseline. Returns the cell.

local cell = load(KEYS[1])
local missing = tonumber(ARGV[2]) - sum(cell)
if missing > 0 then
    -- Another aggregator may have set a baseline by evidence of less use.
    local baseline = tonumber(count_of(cell, ARGV[3]) or 0) + missing
    put(cell, ARGV[3], string.format('%.0f', baseline))
    save(cell)
end
extend_cell(cell, ARGV[1])
return cell.flat
