-- Returns how many entries are pending and how many were not delivered, and the
-- age in milliseconds of the oldest of them, or -1.
-- ARGV: group, session, the highest number that is counted by reading
local undelivered, last = false, '0-0'
for _, g in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local is = {}
  for i = 1, #g, 2 do
    is[g[i]] = g[i + 1]
  end
  if is.name == group then
    last, undelivered = is['last-delivered-id'], is.lag
  end
end
local summary = redis.call('XPENDING', stream, group)
if not undelivered then -- before Redis 7, and after a deletion it does not know
  undelivered = #redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', ARGV[3])
end
local oldest = summary[1] > 0 and summary[2] or nil
if not oldest then
  local first = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)[1]
  oldest = first and first[1]
end
local age = -1
if oldest then
  local now = redis.call('TIME')
  age = math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(string.match(oldest, '^%d+')))
end
return {summary[1], undelivered, age}
