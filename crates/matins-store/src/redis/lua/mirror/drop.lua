-- Purpose: takes entries out that need not be here: id and what the index has of it by turns.
local ids, gone, index = {}, {}, {}
for i = 5, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
for i, known in ipairs(find('mirror:index', ids)) do
    if known == ARGV[4 + 2 * i] then
        gone[#gone + 1] = ids[i]
        index[#index + 1] = known
    end
end
remove_all(gone, index)
return {'ok', text(#gone)}
