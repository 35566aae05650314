-- Reads new entries if this session is the active one, and otherwise returns
-- false. Returns the entries, and the last ID that the group has delivered.
-- ARGV: group, session, how many
if redis.call('GET', KEYS[2]) ~= me then
  return false
end
local read = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', ARGV[3], 'STREAMS', stream, '>')
local entries = {}
if read then
  for i, entry in ipairs(read[1][2]) do
    entries[i] = {entry[1], 1, entry[2]}
  end
end
return {entries, {}, groupInfo()['last-delivered-id']}
