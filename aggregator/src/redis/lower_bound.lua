-- KEYS: the cell. ARGV: what is left until the cell expires, in milliseconds; the lower bound of the sum; the field of the baseline. Returns the cell.

local cell = load(KEYS[1])
if not count_of(cell, ARGV[3]) then
    local missing = tonumber(ARGV[2]) - sum(cell)
    if missing > 0 then
        put(cell, ARGV[3], string.format('%.0f', missing))
        save(cell)
    end
end
extend_cell(cell, ARGV[1])
return cell.flat
