package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"strconv"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
	"github.com/redis/go-redis/v9"
)

// duplicate returns the record of a key that is Done and has its outcome, by one
// plain command, which costs the server less than a script. GETEX without an option is
// GET, but a write, so no replica answers it. ok is false if the script has to
// decide, and while few keys that the store meets are Done.
func (s *Store) duplicate(ctx context.Context, k once.Key) (rec once.Record, ok bool) {
	if !s.lost.High() || s.noGetEx.Load() || s.confirm.needed() || s.ready(ctx) != nil {
		return rec, false
	}
	now, err := s.clock.Now(ctx)
	if err != nil {
		return rec, false
	}
	id := k.UUID()
	value, err := s.client.GetEx(ctx, s.keys(id)[1], -1).Result()
	if redis.HasErrorPrefix(err, "ERR unknown command") || redis.HasErrorPrefix(err, "NOPERM") {
		s.noGetEx.Store(true)
	}
	if err != nil {
		s.checkAgain(err)
		return rec, false
	}
	rec, err = readOutcome(value, id, now)
	return rec, err == nil && rec.OutcomeLeft > 0
}

// The fields that are stored with an outcome, as settle.lua and withFields write them.
const (
	isAttempt = iota
	isOwner
	isFingerprint
	isCause
	isContentType
	isFlags
	isSum
	isReason
	isCreated
	isUpdated
	isScope
	isOperation
	isID
	isKeepOutcome
	isKeepKey
	outcomeFields
)

// withFields returns what is stored of the outcome of a record.
func withFields(row cas.Row) []byte {
	number := func(i int64) string { return strconv.FormatInt(i, 10) }
	fields := [outcomeFields]string{isAttempt: number(row.Attempt), isOwner: string(row.Owner[:]), isFingerprint: string(row.Fingerprint),
		isCause: cause(row.Cause), isContentType: row.Outcome.ContentType, isFlags: number(int64(flags(row.Outcome))),
		isSum: number(int64(row.Outcome.Sum)), isReason: row.Reason, isCreated: number(int64(row.Created)),
		isUpdated: number(int64(row.Updated)), isScope: row.Key.Scope, isOperation: row.Key.Operation, isID: row.Key.ID,
		isKeepOutcome: number(int64(row.KeepOutcome)), isKeepKey: number(int64(row.KeepKey))}
	var head []byte
	for _, text := range fields {
		head = appendText(head, text)
	}
	head = appendText(head, checkOf(head))
	return append(append(binary.BigEndian.AppendUint32(nil, uint32(len(head))), head...), row.Outcome.Body...)
}

func appendText(to []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32(to, uint32(len(text))), text...)
}

// checkOf returns what follows the fields, so that a damaged one is noticed. It is
// what scripts can compute. Earlier builds did not write it.
func checkOf[Text []byte | string](fields Text) string {
	sum := sha1.Sum([]byte(fields))
	return hex.EncodeToString(sum[:])
}

// cut cuts a text off that begins with its length.
func cut(from string) (text, rest string, ok bool) {
	const size = 4
	if len(from) < size {
		return "", "", false
	}
	n := uint64(binary.BigEndian.Uint32([]byte(from[:size])))
	if from = from[size:]; n > uint64(len(from)) {
		return "", "", false
	}
	return from[:n], from[n:], true
}

// readOutcome returns the record of what is stored of an outcome.
func readOutcome(value string, id [16]byte, now cas.Now) (rec once.Record, err error) {
	head, body, ok := cut(value)
	all := head
	var fields [outcomeFields]string
	for i := range fields {
		if ok {
			fields[i], head, ok = cut(head)
		}
	}
	if head != "" && ok {
		var check string
		check, _, ok = cut(head)
		ok = ok && check == checkOf(all[:len(all)-len(head)])
	}
	if !ok {
		return rec, once.ErrCorrupt
	}
	at := func(field int) int64 {
		n, _ := strconv.ParseInt(fields[field], 10, 64) // readRecord says what is no number
		return n
	}
	age := max(0, now.AtMostSince(cas.Instant(at(isCreated))).Microseconds())
	left := max(0, now.AtLeastUntil(cas.Instant(min(at(isKeepOutcome), at(isKeepKey)))).Microseconds())
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return readRecord([]string{number(int64(once.Done)), fields[isAttempt], fields[isOwner], "0", number(age), fields[isFingerprint],
		fields[isCause], fields[isContentType], fields[isFlags], fields[isSum], fields[isReason], fields[isCreated], fields[isUpdated],
		fields[isScope], fields[isOperation], fields[isID], body, number(left)}, id)
}
