-- Merges several cells. A cell that fails is answered with its error; the others are merged nevertheless.
--
-- KEYS: for each cell its own name, and the names of the earlier cells that the window touches if they are wanted or
-- there is a proposal, newest first.
-- ARGV: for each cell what is left until it expires in milliseconds, limit or '', lower bound or '', the number of counts, the
--       number of earlier cells, and node and count in turn. A count after '+' is of a node that had sent its whole use: what it
--       grows by adds to the lower bound. If there are earlier cells: '1' if they are wanted, '1' if there is a proposal, and of
--       the proposal: node, own, limit, global_current, global_previous, covered_ms, cell_ms.
-- Returns an answer for each of the first cells; those left were not merged, so that one call remains short. An answer
-- is 0 if the cell holds what was sent and nothing else, or else: 1, 0 or -1 (granted, refused, no proposal), the cell,
-- and the list of earlier cells if they are wanted.

local MOST_VALUES = 8192 -- after reading so many fields and values a call ends

local read = 0

local function total_of_earlier(earlier, previous)
    for _, one in ipairs(earlier) do previous = add(previous, math.max(sum(one), lower_bound(one))) end
    return math.min(MAX, previous)
end

-- Grants a proposal whose arguments begin at `at`, if it fits.
local function propose(cell, earlier, at)
    local node, own = ARGV[at], tonumber(ARGV[at + 1])
    local stored = count_of(cell, node) or 0
    local known, bound = sum(cell), lower_bound(cell)
    local others = math.max(known, bound)
    -- A sum beyond MAX is not exact, and fits no limit.
    local used = others > MAX and OVER or add(others - stored, math.max(stored, own))
    used = add(used, tonumber(ARGV[at + 3]))
    local previous = total_of_earlier(earlier, tonumber(ARGV[at + 4]))
    used = add(used, share(previous, tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])))
    if used > tonumber(ARGV[at + 2]) then return 0 end
    if bound > known then raise_lower_bound(cell, bound + math.max(0, own - stored)) end
    raise(cell, node, ARGV[at + 1])
    return 1
end

-- Raises the counts of a cell that has a lower bound, or is sent one. What returns after a loss is in it already, and only what
-- a node uses after it has sent all adds to it. Returns whether the cell now holds exactly these counts and this lower bound.
local function raise_above(cell, first, last, sent)
    local bound, new, same = lower_bound(cell), 0, true
    local is_short = bound > sum(cell)
    for i = first, last, 2 do
        local node, text = ARGV[i], ARGV[i + 1]
        if string.byte(text) == 43 then -- '+'
            text = string.sub(text, 2)
            local stored = count_of(cell, node)
            if is_short and stored then new = new + math.max(0, tonumber(text) - stored) end
        end
        same = raise(cell, node, text) and same
    end
    raise_lower_bound(cell, math.max(bound + new, tonumber(sent) or 0))
    return same and lower_bound(cell) == tonumber(sent)
end

-- Merges the cell KEYS[key], whose arguments begin at `at`. Its counts end before `last`.
local function merge(key, at, last, earlier_cells)
    local cell = load(KEYS[key])
    read = read + cell.size
    local sent, same = last - at - 5, true
    local limit, bound = ARGV[at + 1], ARGV[at + 2]
    if bound ~= '' or cell.place['b'] then
        sent = sent + 2
        same = raise_above(cell, at + 5, last - 1, bound)
    else
        for i = at + 5, last - 1, 2 do same = raise(cell, ARGV[i], ARGV[i + 1]) and same end
    end
    if limit ~= '' then
        local place = cell.place['l']
        local stored = place and cell.flat[place]
        sent = sent + 2
        if stored ~= limit then
            stored = number(stored)
            if not stored or tonumber(limit) < stored then put(cell, 'l', limit) else same = false end
        end
    end
    if earlier_cells == 0 then
        save(cell)
        extend_cell(cell, ARGV[at])
        if same and #cell.flat == sent then return 0 end
        return { -1, cell.flat, {} }
    end
    local earlier, others, granted = {}, {}, -1
    for i = 1, earlier_cells do
        earlier[i] = load(KEYS[key + i])
        read = read + earlier[i].size
    end
    if ARGV[last + 1] == '1' then granted = propose(cell, earlier, last + 2) end
    save(cell)
    extend_cell(cell, ARGV[at])
    if ARGV[last] == '1' then
        for i, one in ipairs(earlier) do others[i] = one.flat end
    end
    return { granted, cell.flat, others }
end

-- The same for the usual cell, which one node uses: without tables of its fields, which cost more than the commands.
-- Returns nil for any other cell, which is unchanged then.
local function merge_alone(key, at)
    local size = call('HLEN', key)
    if size ~= 0 and size ~= 2 then return nil end
    local left_ms, limit, node, own = ARGV[at], ARGV[at + 1], ARGV[at + 5], ARGV[at + 6]
    if size == 0 then
        call('HSET', key, node, own, 'l', limit)
        extend(key, left_ms)
        return 0
    end
    local stored = call('HMGET', key, node, 'l')
    if stored[2] ~= limit then return nil end
    if stored[1] ~= own then
        local count = number(stored[1])
        if not count or count >= tonumber(own) then return nil end
        call('HSET', key, node, own)
    end
    if tonumber(left_ms) < MARGIN_MS then extend(key, left_ms) end
    read = read + 2 * size
    return 0
end

local function merge_any(key, at, last, earlier_cells)
    local of_one_node = earlier_cells == 0 and last == at + 7 and ARGV[at + 1] ~= '' and ARGV[at + 2] == ''
    return of_one_node and merge_alone(KEYS[key], at) or merge(key, at, last, earlier_cells)
end

local answers = {}
local key, at = 1, 1
while key <= #KEYS and read < MOST_VALUES do
    local earlier_cells = tonumber(ARGV[at + 4])
    local last = at + 5 + 2 * ARGV[at + 3]
    local merged, answer = pcall(merge_any, key, at, last, earlier_cells)
    if not merged and type(answer) ~= 'table' then answer = redis.error_reply('ERR ' .. answer) end
    answers[#answers + 1] = answer
    key, at = key + 1 + earlier_cells, last
    if earlier_cells > 0 then at = last + (ARGV[last + 1] == '1' and 9 or 2) end
end
return answers
