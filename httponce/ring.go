package httponce

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/effectively-once/once"
)

// Secret is a key of a [Ring]. The zero Secret seals nothing. Use it as the
// first secret until all processes have the next.
type Secret = once.Secret

// Ring seals recorded responses with AES-256-GCM and keys the fingerprints of
// requests, so that a reader of the database sees neither the responses nor
// which requests were equal. The first secret seals. The others open what they
// sealed and recognise requests whose fingerprints they keyed. Requests that
// were recorded without a Ring are recognised as well.
//
// Roll out a new secret in two steps, because a process without it cannot open
// what it sealed, and takes a repeat for another request: add the secret as the
// last of all rings, then make it the first. For the first ring, use
// NewRing(Secret{}, next), then NewRing(next). Remove a secret once nothing
// that it sealed is kept.
//
// A Ring accepts responses that were recorded in plain text. If somebody who
// can write to the database must not be able to replace a response, seal in the
// store with [once.Sealing] and its Only. That covers responses too, and this
// Ring still keys the fingerprints.
type Ring struct {
	ring    *once.Ring
	secrets []secret
}

type secret struct {
	id    string
	marks []byte // keys the fingerprints; nil: neither seals nor keys
}

// NewRing returns a ring with these secrets. The first one seals.
func NewRing(secrets ...Secret) (*Ring, error) {
	sealing, err := once.NewRing(secrets...)
	if err != nil {
		return nil, fmt.Errorf("httponce: %w", err)
	}
	ring := &Ring{ring: sealing}
	for _, s := range secrets {
		made := secret{id: s.ID}
		if s.Bytes != nil {
			if made.marks, err = hkdf.Key(sha256.New, s.Bytes, nil, "once http fingerprint 1", 32); err != nil {
				return nil, fmt.Errorf("httponce: the secret %q: %w", s.ID, err)
			}
		}
		ring.secrets = append(ring.secrets, made)
	}
	return ring, nil
}

// sealedFor is the associated data of sealed responses. The key of the request
// is in the sealed text instead, because a codec does not know it.
const sealedFor = "once http response"

// seal seals text together with the key of its request, so that it cannot be
// moved to another key.
func (r *Ring) seal(text []byte, key [16]byte) (sealed []byte, id string) {
	return r.ring.Seal(append(key[:], text...), []byte(sealedFor)), r.secrets[0].id
}

func (r *Ring) open(sealed []byte) (text []byte, key [16]byte, err error) {
	plain, err := r.ring.Open(sealed, []byte(sealedFor))
	if err == nil && len(plain) < len(key) {
		err = errors.New("it is too short")
	}
	if err != nil {
		return nil, key, fmt.Errorf("httponce: a sealed response cannot be opened: %w", err)
	}
	return plain[len(key):], [16]byte(plain), nil
}

// seals reports whether the first secret seals.
func (r *Ring) seals() bool { return r != nil && r.ring.Seals() }

// marks returns how many marks a digest may have been recorded as.
func (r *Ring) marks() int {
	switch {
	case r == nil:
		return 1
	case r.seals():
		return len(r.secrets) + 1
	}
	return len(r.secrets)
}

// mark returns one of the marks of a digest. The first is the current one. The
// last one of a ring that seals is that of a process without a ring.
func (r *Ring) mark(i int, digest []byte) []byte {
	if r == nil || i == len(r.secrets) {
		return digest
	}
	return r.secrets[i].mark(digest)
}

// mark keys the digest of a request.
func (s secret) mark(digest []byte) []byte {
	if s.marks == nil {
		return digest
	}
	h := hmac.New(sha256.New, s.marks)
	h.Write(digest)
	return h.Sum(nil)
}
