package httponce

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"github.com/effectively-once/once"
)

// Secret is a key of a [Ring]. The zero Secret seals nothing: as the current one, it is for the time until all
// processes have the next.
type Secret = once.Secret

// Ring seals recorded responses with AES-256-GCM and keys the fingerprints of requests, so that who reads the database sees
// neither answers nor whether two requests were the same. The first secret seals; the others open what they have sealed
// and recognise the requests that they have marked. What was recorded without a Ring is recognised as well.
//
// Processes that share a store get a new secret in two steps, because one that lacks it can open nothing that it
// sealed, and takes a repeat for another request: first as the last of all rings, then as the first. The first ring of
// all is NewRing(Secret{}, next), then NewRing(next). A secret may be removed when nothing that it sealed is kept any
// more.
//
// A Ring accepts responses that were recorded plain. Where whoever can write to the database must not replace one, seal in
// the store, with [once.Sealing] and its Only: that covers responses too, and this Ring still keys the fingerprints.
type Ring struct {
	ring    *once.Ring
	secrets []secret
}

type secret struct {
	id    string
	marks []byte // keys the fingerprints; nil: nothing is sealed, and nothing keyed
}

const sealedType = plainType + "; sealed="

// NewRing returns a ring with these secrets, the current one first.
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

// sealedFor is what sealed responses are bound to. The key is inside, because a codec does not know it.
const sealedFor = "once http response"

// seal returns text sealed with the current secret. The key that it answers is in it, so that it answers no other.
func (r *Ring) seal(text []byte, key [16]byte) (sealed []byte, id string) {
	return r.ring.Seal(append(key[:], text...), []byte(sealedFor)), r.secrets[0].id
}

func (r *Ring) open(sealed []byte) (text []byte, key [16]byte, err error) {
	plain, err := r.ring.Open(sealed, []byte(sealedFor))
	if err == nil && len(plain) < len(key) {
		err = errResponse
	}
	if err != nil {
		return nil, key, fmt.Errorf("httponce: a sealed response cannot be opened: %w", err)
	}
	return plain[len(key):], [16]byte(plain), nil
}

// seals reports whether there is a current secret.
func (r *Ring) seals() bool { return r != nil && r.ring.Seals() }

// marks are what a digest may have been recorded as, the current one first.
func (r *Ring) marks(digest []byte) [][]byte {
	if r == nil {
		return [][]byte{digest}
	}
	var all [][]byte
	for _, s := range r.secrets {
		all = append(all, s.mark(digest))
	}
	if r.seals() {
		all = append(all, digest)
	}
	return all
}

// mark keys a digest of a request with a secret of the ring.
func (s secret) mark(digest []byte) []byte {
	if s.marks == nil {
		return digest
	}
	h := hmac.New(sha256.New, s.marks)
	h.Write(digest)
	return h.Sum(nil)
}
