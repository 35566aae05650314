-- Functions of the other scripts, which begin with them.

local stream, group, me = KEYS[1], ARGV[1], ARGV[2]

-- pending returns the entry of the group that is pending with that ID, or nil:
-- {id, consumer, idle, deliveries}.
local function pending(id)
  return redis.call('XPENDING', stream, group, id, id, 1)[1]
end

-- mine reports whether an entry is pending for this session.
local function mine(id)
  local p = pending(id)
  return p ~= nil and p[2] == me
end

-- claim makes an entry that is pending one of this session, and adds it to
-- claimed with the number of its deliveries. One that was deleted is removed
-- from the group, and added to deleted.
local function claim(p, claimed, deleted)
  local entry = redis.call('XRANGE', stream, p[1], p[1])[1]
  if entry == nil then
    redis.call('XACK', stream, group, p[1])
    deleted[#deleted + 1] = p[1]
    return
  end
  redis.call('XCLAIM', stream, group, me, 0, p[1])
  claimed[#claimed + 1] = {p[1], p[4] + 1, entry[2]}
end

-- groupInfo returns what XINFO GROUPS has about the group, or nil.
local function groupInfo()
  for _, g in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local is = {}
    for i = 1, #g, 2 do
      is[g[i]] = g[i + 1]
    end
    if is.name == group then
      return is
    end
  end
end
