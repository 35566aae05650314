-- Deletes the oldest entries of a stream that every group has acknowledged, and
-- that are older than a time. Returns how many, or the name of a group that
-- is missing or that nobody named.
-- ARGV: the number of milliseconds to keep, the groups
local stream = KEYS[1]

-- before reports whether an ID is that of an earlier entry. The second number of
-- an ID may be larger than a number of Lua.
local function before(a, b)
  local ams, aseq = string.match(a, '^(%d+)-(%d+)$')
  local bms, bseq = string.match(b, '^(%d+)-(%d+)$')
  if ams ~= bms then
    return tonumber(ams) < tonumber(bms)
  end
  return #aseq < #bseq or #aseq == #bseq and aseq < bseq
end

local now = redis.call('TIME')
local keep = math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(ARGV[1]))
local floor = string.format('%.0f-0', keep)
local missing = {}
for i = 2, #ARGV do
  missing[ARGV[i]] = true
end
for _, g in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local is = {}
  for i = 1, #g, 2 do
    is[g[i]] = g[i + 1]
  end
  if not missing[is.name] then
    return {'unnamed', is.name}
  end
  missing[is.name] = nil
  if before(is['last-delivered-id'], floor) then
    floor = is['last-delivered-id']
  end
  local summary = redis.call('XPENDING', stream, is.name)
  if summary[1] > 0 and before(summary[2], floor) then
    floor = summary[2]
  end
end
for name in pairs(missing) do
  return {'missing', name}
end
return redis.call('XTRIM', stream, 'MINID', '=', floor)
