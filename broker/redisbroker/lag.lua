-- Returns how many entries are pending and how many were not delivered, and the
-- age in milliseconds of the oldest of them, or -1.
-- ARGV: group, session, the highest number that is counted by reading
local summary = redis.call('XPENDING', stream, group) -- an error if there is no group
local is = groupInfo()
local last, undelivered = is['last-delivered-id'], is.lag
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
