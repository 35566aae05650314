package tiered

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// An entry is
//
//	version | until | attempt | owner | cause | flags | sum | texts | code
//
// where until is in microseconds since 1970, each of the four texts follows its
// length, and the code authenticates the key and all of the entry before it.
const (
	version = 1
	head    = 1 + 8 + 8 + 16 + 16 + 1 + 4
	texts   = 4
	code    = sha256.Size
)

// barred is the value of a key whose answer must not be cached. It is no entry.
var barred = []byte{0}

const (
	flagRejected = 1 << iota
	flagOmitted
)

// codec writes and reads entries.
type codec struct {
	secret []byte
	hashes *sync.Pool // of hash.Hash
}

// newCodec derives the secret of entries. Without a secret, the code of an entry
// only reveals damage.
func newCodec(secret []byte) codec {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("once: entries of a cache, version 1"))
	c := codec{secret: h.Sum(nil), hashes: new(sync.Pool)}
	c.hashes.New = func() any { return hmac.New(sha256.New, c.secret) }
	return c
}

// size returns the size of the entry of a record.
func size(rec once.Record) int {
	return head + 4*texts + len(rec.Fingerprint) + len(rec.Outcome.ContentType) + len(rec.Reason) + len(rec.Outcome.Body) + code
}

// encode returns the entry of a record that is Done.
func (c codec) encode(id [16]byte, rec once.Record, until time.Time) []byte {
	out := rec.Outcome
	var flags byte
	if out.Rejected {
		flags |= flagRejected
	}
	if out.Omitted {
		flags |= flagOmitted
	}
	b := append(make([]byte, 0, size(rec)), version)
	b = binary.BigEndian.AppendUint64(b, uint64(until.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, uint64(rec.Attempt))
	b = append(b, rec.Owner[:]...)
	b = append(b, rec.Cause[:]...)
	b = binary.BigEndian.AppendUint32(append(b, flags), out.Sum)
	b = appendText(b, rec.Fingerprint)
	b = appendText(b, out.ContentType)
	b = appendText(b, rec.Reason)
	b = appendText(b, out.Body)
	return append(b, c.code(id, b)...)
}

func appendText[Text []byte | string](b []byte, text Text) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(text))), text...)
}

func (c codec) code(id [16]byte, entry []byte) []byte {
	h := c.hashes.Get().(hash.Hash)
	defer c.hashes.Put(h)
	h.Reset()
	h.Write(id[:])
	h.Write(entry)
	return h.Sum(nil)
}

// decode returns the record of an entry. It returns false for what is no entry of
// this key, and for one whose time has passed. The record shares the memory of
// the entry.
func (c codec) decode(k once.Key, id [16]byte, b []byte, now time.Time) (rec once.Record, ok bool) {
	if len(b) < head+4*texts+code || b[0] != version {
		return rec, false
	}
	end := len(b) - code
	if !hmac.Equal(b[end:], c.code(id, b[:end])) {
		return rec, false
	}
	until := time.UnixMicro(int64(binary.BigEndian.Uint64(b[1:])))
	if !now.Before(until) {
		return rec, false
	}
	rec = once.Record{Key: k, Status: once.Done, Attempt: int64(binary.BigEndian.Uint64(b[9:]))}
	copy(rec.Owner[:], b[17:])
	copy(rec.Cause[:], b[33:])
	rec.Outcome = once.Outcome{Rejected: b[49]&flagRejected != 0, Omitted: b[49]&flagOmitted != 0, Sum: binary.BigEndian.Uint32(b[50:])}
	var parts [texts][]byte
	rest := b[head:end:end]
	for i := range parts {
		if len(rest) < 4 || uint64(len(rest)-4) < uint64(binary.BigEndian.Uint32(rest)) { // without a secret, anybody can make a code
			return once.Record{}, false
		}
		n := 4 + int(binary.BigEndian.Uint32(rest))
		parts[i], rest = rest[4:n:n], rest[n:]
	}
	if len(rest) > 0 {
		return once.Record{}, false
	}
	if len(parts[0]) > 0 {
		rec.Fingerprint = parts[0]
	}
	rec.Outcome.ContentType, rec.Reason, rec.Outcome.Body = string(parts[1]), string(parts[2]), parts[3]
	return rec, true
}
