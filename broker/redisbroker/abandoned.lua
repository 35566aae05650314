-- Claims entries of other consumers that were not renewed for long, from a
-- position on, and returns the position to continue from, or ''.
-- ARGV: group, session, minimum idle time, how many, position, page
local claimed, deleted, position = {}, {}, ''
local page = redis.call('XPENDING', stream, group, 'IDLE', ARGV[3], ARGV[5], '+', ARGV[6])
for i, p in ipairs(page) do
  if p[2] ~= me then
    claim(p, claimed, deleted)
  end
  local full = #claimed >= tonumber(ARGV[4])
  if full or i == #page and #page == tonumber(ARGV[6]) then
    position = '(' .. p[1]
  end
  if full then
    break
  end
end
return {claimed, deleted, position}
