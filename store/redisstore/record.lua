-- A record is a hash: KEYS[1]. Its outcome is KEYS[2], which exists only while it is
-- Done, and which Redis drops on time. KEYS[3] has the digests of the open records of
-- its partition.
-- Times are microseconds of the server's clock. Statuses are those of once.Status.
-- A record with firm is the claim of a transaction that has written nothing else:
-- if its lease lapses, the key is free, because the transaction is then refused.
local ABSENT, RUNNING, UNKNOWN, PARKED, DONE, EXPIRED = 0, 1, 2, 3, 4, 5

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- read returns a record by the names of its fields, and as Redis returns it.
local function read(key)
	local row, flat = {}, redis.call('HGETALL', key)
	for i = 1, #flat, 2 do
		row[flat[i]] = flat[i + 1]
	end
	return row, flat
end

-- What is Done has the format of its record, and a check of all that decides what
-- becomes of the key: a damaged bit must not make the work run again. Its outcome
-- has a sum of its own. Records of earlier builds have neither.
local FORMAT = 2
local DECIDES = { 'status', 'attempt', 'owner', 'lease', 'firm', 'fingerprint', 'cause', 'scope', 'operation', 'id',
	'created', 'updated', 'content_type', 'flags', 'sum', 'keep_outcome', 'keep_key' }

local function checkOf(row)
	local all = {}
	for i, name in ipairs(DECIDES) do
		all[i] = row[name] and #row[name] .. ':' .. row[name] or '-'
	end
	return redis.sha1hex(table.concat(all, ' '))
end

-- readRecord is read for a record. It fails for one that is not as it was stored.
local function readRecord(key)
	local row, flat = read(key)
	if row.format or row.check then
		if (tonumber(row.format) or 0) > FORMAT then
			error('damaged record, or one of a newer build: its format is ' .. row.format .. ', and this build knows none after ' .. FORMAT, 0)
		end
		if row.format ~= tostring(FORMAT) or row.check ~= checkOf(row) then
			error('damaged record: it is not what was stored', 0)
		end
	elseif flat[1] and not (row.status and row.attempt and row.owner) then
		error('damaged record: it lacks a field', 0)
	end
	if row.status == '4' and not (row.keep_key and row.keep_outcome and row.created and row.updated) then
		error('damaged record: it lacks a time', 0)
	end
	return row, flat
end

local row, flat -- of KEYS[1], in scripts of one record

-- number writes an integer with all its digits, which tostring does not.
local function number(n)
	return string.format('%.0f', n)
end

-- after returns the time some microseconds from now.
local function after(duration)
	return number(now + tonumber(duration))
end

-- status returns what the record has become by now. A key that is forgotten is
-- one that was never seen.
local function status()
	local is = tonumber(row.status or ABSENT)
	if is == RUNNING and tonumber(row.lease) <= now then
		if row.firm ~= '1' then
			return UNKNOWN
		end
		is, row.reason = ABSENT, 'its transaction did not commit'
	end
	if (is == ABSENT or is == DONE) and row.keep_key and tonumber(row.keep_key) <= now then
		row = {}
		return ABSENT
	end
	if is == DONE and tonumber(row.keep_outcome) <= now then
		return EXPIRED
	end
	return is
end

-- version tells what is stored from all that a key had before. rev is random, and
-- new with each write of commit.lua.
local function version(row)
	if not row.attempt then
		return ''
	end
	return table.concat({ row.status, row.attempt, row.owner, row.lease, row.updated, row.rev }, ' ')
end

-- An outcome is stored with the fields of its record, so that one command reads all of
-- a duplicate: the length of the fields, each with its own length, and the body.
local function body()
	local value = redis.call('GET', KEYS[2])
	return value and string.sub(value, struct.unpack('>I4', value) + 5) or ''
end

-- heldBy tells whether a fence is that of the latest claim, even if its attempt
-- has ended.
local function heldBy(owner, attempt)
	return row.owner == owner and row.attempt == attempt
end

-- expire lets Redis drop a key at a time. Redis counts milliseconds: rounded
-- up, it drops nothing too early.
local function expire(key, at)
	redis.call('PEXPIREAT', key, number(math.ceil(tonumber(at) / 1000)))
end

-- orNoOutcome calls write, and drops an outcome if it fails: a duplicate is answered
-- from the outcome alone.
local function orNoOutcome(outcome, write)
	local done, why = pcall(write)
	if not done then
		redis.pcall('DEL', outcome)
		error(why, 0)
	end
end

-- onPrimary makes a replica refuse the script, because it may not know the latest
-- record: PERSIST is a write, and changes nothing here. Redis accepts what a
-- script writes after its first write even where memory is full, so work that
-- has begun is recorded.
--
-- If the call waits for replicas, CONFIRMED is true. Servers differ in whether WAIT
-- counts only what its own connection has written, so what a call found is written
-- again: an earlier call may have written it without an answer.
local function onPrimary()
	redis.call('PERSIST', KEYS[3])
	if CONFIRMED and row.owner then
		redis.call('HSET', KEYS[1], 'owner', row.owner)
	end
end

-- answer returns the record as readers see it.
local function answer()
	local is = status()
	local left = 0
	if is == RUNNING or is == UNKNOWN then
		left = tonumber(row.lease) - now
	end
	local outcome, kept = '', 0
	if is == DONE then
		outcome, kept = body(), math.min(tonumber(row.keep_outcome), tonumber(row.keep_key)) - now
	end
	return { number(is), row.attempt or '0', row.owner or '', number(left), number(now - tonumber(row.created or now)),
		row.fingerprint or '', row.cause or '', row.content_type or '', row.flags or '0', row.sum or '0', row.reason or '',
		row.created or '0', row.updated or '0', row.scope or '', row.operation or '', row.id or '', outcome,
		number(kept) }
end
