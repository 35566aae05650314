-- isMessage tells whether a document is a message of the outbox, which the index
-- has, from its name.
local function isMessage(name)
	return string.sub(name, 1, 4) == 'out/'
end

-- ring wakes relays. They would poll without it, so it never fails.
local function ring(bell)
	redis.pcall('XADD', bell, 'MAXLEN', '~', 16, '*', 'put', '1')
end

