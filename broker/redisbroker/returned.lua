-- Claims entries that were returned.
-- ARGV: group, session, the consumer that has them, how many
local claimed, deleted = {}, {}
for _, p in ipairs(redis.call('XPENDING', stream, group, '-', '+', ARGV[4], ARGV[3])) do
  claim(p, claimed, deleted)
end
return {claimed, deleted}
