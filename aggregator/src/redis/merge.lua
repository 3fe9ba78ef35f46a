-- KEYS: the cell, and the earlier cells that the window touches if they are wanted or there is a proposal, newest
-- first.
-- ARGV: expires_ms, limit or '', '1' if the earlier cells are wanted, '1' if there is a proposal;
--       of the proposal: node, own, limit, global_current, global_previous, covered_ms, cell_ms;
--       then node and count in turn.
-- Returns 1, 0 or -1 (granted, refused, no proposal), the cell, and the list of earlier cells if they are wanted.

local cell = load(KEYS[1])
local proposed = ARGV[4] == '1'
for i = proposed and 12 or 5, #ARGV, 2 do raise(cell, ARGV[i], ARGV[i + 1]) end

if ARGV[2] ~= '' then
    local place = cell.place['l']
    local stored = place and number(cell.flat[place])
    if not stored or tonumber(ARGV[2]) < stored then put(cell, 'l', ARGV[2]) end
end

local before = {}
for i = 2, #KEYS do before[i - 1] = load(KEYS[i]) end

local granted = -1
if proposed then
    local origin, own = ARGV[5], tonumber(ARGV[6])
    local stored = cell.counts[origin]
    cell.counts[origin] = math.max(stored or 0, own)
    local used = add(sum(cell.counts), tonumber(ARGV[8]))
    cell.counts[origin] = stored
    local previous = tonumber(ARGV[9])
    for _, one in ipairs(before) do previous = add(previous, sum(one.counts)) end
    used = add(used, share(math.min(MAX, previous), tonumber(ARGV[10]), tonumber(ARGV[11])))
    granted = 0
    if used <= tonumber(ARGV[7]) then
        granted = 1
        raise(cell, origin, ARGV[6])
    end
end

save(cell)
extend(KEYS[1], ARGV[1])
local others = {}
if ARGV[3] == '1' then
    for i, one in ipairs(before) do others[i] = one.flat end
end
return { granted, cell.flat, others }
