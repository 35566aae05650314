-- Writes records and documents if they still have the versions that were read, and
-- runs the commands of a transaction. KEYS has three keys for each record, one for
-- each document, and if there are documents the index and the bell. ARGV has the
-- number of records, what to write of each, the same of the documents, and the
-- commands.
local at = 0
local function take()
	at = at + 1
	return ARGV[at]
end
local function takeAll()
	local from = at + 2
	at = at + 1 + tonumber(ARGV[at + 1])
	return from, at
end

local changes = {}
for i = 1, tonumber(take()) do
	local c = { record = KEYS[3 * i - 2], outcome = KEYS[3 * i - 1], open = KEYS[3 * i] }
	c.row, c.flat = readRecord(c.record)
	if version(c.row) ~= take() then
		return { 'stale' }
	end
	c.digest, c.status, c.reason, c.body, c.keepOutcome, c.expires = take(), take(), take(), take(), take(), take()
	c.from, c.to = takeAll()
	changes[i] = c
end

local rev, docs = take(), {}
for i = 1, tonumber(take()) do
	local d = { key = KEYS[3 * #changes + i] }
	d.old, d.flat = read(d.key)
	d.name = take()
	if (d.old.version or d.flat[1] and 'none' or '') ~= take() then -- 'none': it is damaged
		return { 'stale' }
	end
	d.keeps, d.text, d.expires = take() == '1', take(), take()
	docs[i] = d
end
local index, bell = KEYS[3 * #changes + #docs + 1], KEYS[3 * #changes + #docs + 2]

local function writeDoc(d)
	if not d.keeps then
		redis.call('DEL', d.key)
		if isMessage(d.name) then
			redis.call('ZREM', index, d.name)
		end
		return
	end
	if isMessage(d.name) then
		redis.call('ZADD', index, 0, d.name)
	end
	redis.call('HSET', d.key, 'text', d.text, 'version', rev, 'expires', d.expires)
	redis.call('HDEL', d.key, 'parked')
	redis.call('PERSIST', d.key)
	if d.expires ~= '' then
		expire(d.key, d.expires)
	end
end

-- undoDoc makes a document what it was. If commands were applied, their position
-- must not be used again before somebody has looked at it.
local function undoDoc(d, why)
	redis.call('DEL', d.key)
	if not d.old.version then
		if isMessage(d.name) then
			redis.call('ZREM', index, d.name)
		end
		return
	end
	redis.call('HSET', d.key, unpack(d.flat))
	if d.old.expires ~= '' then
		expire(d.key, d.old.expires)
	end
	if isMessage(d.name) then
		redis.call('ZADD', index, 0, d.name)
	end
	if why and string.sub(d.name, 1, 9) == 'position/' then
		redis.call('HSET', d.key, 'parked', why)
	end
end

local function isOpen(status)
	return tonumber(status) >= RUNNING and tonumber(status) <= PARKED
end

-- first: after another write, it would not fail where memory is full
for _, c in ipairs(changes) do
	redis.call('ZADD', c.open, 0, c.digest)
end
-- Redis does not undo what a script wrote. Until all is written, records are
-- parked.
for _, c in ipairs(changes) do
	redis.call('DEL', c.record, c.outcome)
	redis.call('HSET', c.record, 'status', number(PARKED), 'reason', 'its transaction stopped between two commands',
		unpack(ARGV, c.from, c.to))
end
for _, d in ipairs(docs) do
	writeDoc(d)
end

local count = tonumber(take())
for i = 1, count do
	local from, to = takeAll()
	local answer = redis.pcall(unpack(ARGV, from, to))
	if type(answer) == 'table' and answer.err then
		if i > 1 then
			local why = string.format('command %d of %d (%s) failed, and those before it were applied: %s', i, count, ARGV[from], answer.err)
			for _, c in ipairs(changes) do
				redis.call('HSET', c.record, 'reason', why)
			end
			-- Nothing of it may be published: whoever resolves the key runs it again, or
			-- has its effects completed by hand.
			for _, d in ipairs(docs) do
				undoDoc(d, why)
			end
			return { 'parked', why }
		end
		for _, c in ipairs(changes) do
			redis.call('DEL', c.record)
			if c.row.attempt then
				redis.call('HSET', c.record, unpack(c.flat))
				if c.row.keep_key and (c.row.firm == '1' or not isOpen(c.row.status)) then
					expire(c.record, c.row.keep_key)
				end
			end
			if not isOpen(c.row.status or ABSENT) then
				redis.call('ZREM', c.open, c.digest)
			end
		end
		for _, d in ipairs(docs) do
			undoDoc(d)
		end
		return { 'undone', answer.err }
	end
end

for _, c in ipairs(changes) do
	if not isOpen(c.status) then
		redis.call('ZREM', c.open, c.digest)
	end
	orNoOutcome(c.outcome, function()
		if tonumber(c.status) == DONE then
			redis.call('SET', c.outcome, c.body)
			expire(c.outcome, c.keepOutcome)
		end
		local fields = { 'status', c.status, 'reason', c.reason }
		if tonumber(c.status) == DONE then
			local is = { status = c.status }
			for i = c.from, c.to, 2 do
				is[ARGV[i]] = ARGV[i + 1]
			end
			fields[5], fields[6], fields[7], fields[8] = 'format', number(FORMAT), 'check', checkOf(is)
		end
		redis.call('HSET', c.record, unpack(fields))
	end)
	if c.expires ~= '' then
		expire(c.record, c.expires)
	end
end
for _, d in ipairs(docs) do
	if d.keeps and isMessage(d.name) then
		ring(bell)
		break
	end
end
return { 'done' }
