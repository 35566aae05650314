package httponce

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

// Secret is a key of a [Ring]. The zero Secret seals nothing: as the current one, it is for the time until all
// processes have the next.
type Secret struct {
	ID    string // stored with what it seals: at most 32 letters, digits, - and _
	Bytes []byte // at least 32, random
}

// Ring seals recorded responses with AES-256-GCM and keys the fingerprints of requests, so that who reads the database sees
// neither answers nor whether two requests were the same. The first secret seals; the others open what they have sealed
// and recognise the requests that they have marked. What was recorded without a Ring is recognised as well.
//
// Processes that share a store get a new secret in two steps, because one that lacks it can open nothing that it
// sealed, and takes a repeat for another request: first as the last of all rings, then as the first. The first ring of
// all is NewRing(Secret{}, next), then NewRing(next). A secret may be removed when nothing that it sealed is kept any
// more.
type Ring struct{ secrets []secret }

type secret struct {
	id    string
	aead  cipher.AEAD
	marks []byte // keys the fingerprints
}

const (
	sealedType  = plainType + "; sealed="
	leastSecret = 32
	longestID   = 32
)

// NewRing returns a ring with these secrets, the current one first.
func NewRing(secrets ...Secret) (*Ring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("httponce: a Ring needs a secret")
	}
	ring, seen := new(Ring), make(map[string]bool)
	for i, s := range secrets {
		if i == 0 && s.ID == "" && s.Bytes == nil {
			ring.secrets = append(ring.secrets, secret{})
			continue
		}
		if seen[s.ID] || !validID(s.ID) {
			return nil, fmt.Errorf("httponce: the ID %q of a secret is used twice, or is not 1 to %d letters, digits, - and _", s.ID, longestID)
		}
		seen[s.ID] = true
		made, err := newSecret(s)
		if err != nil {
			return nil, err
		}
		ring.secrets = append(ring.secrets, made)
	}
	return ring, nil
}

func validID(id string) bool {
	return id != "" && len(id) <= longestID && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

func newSecret(s Secret) (made secret, err error) {
	if len(s.Bytes) < leastSecret {
		return made, fmt.Errorf("httponce: the secret %q has %d bytes, at least %d random ones are needed", s.ID, len(s.Bytes), leastSecret)
	}
	sealing, err := hkdf.Key(sha256.New, s.Bytes, nil, "once http seal 1", 32)
	if err != nil {
		return made, err
	}
	marks, err := hkdf.Key(sha256.New, s.Bytes, nil, "once http fingerprint 1", 32)
	if err != nil {
		return made, err
	}
	block, err := aes.NewCipher(sealing)
	if err != nil {
		return made, err
	}
	aead, err := cipher.NewGCM(block)
	return secret{s.ID, aead, marks}, err
}

// seal returns text sealed with the current secret. The key that it answers is in it, so that it answers no other.
func (r *Ring) seal(text []byte, key [16]byte) (sealed []byte, id string, err error) {
	current := r.secrets[0]
	nonce := make([]byte, current.aead.NonceSize(), current.aead.NonceSize()+len(key)+len(text)+current.aead.Overhead())
	if _, err := rand.Read(nonce); err != nil {
		return nil, "", err
	}
	plain := append(key[:], text...)
	return current.aead.Seal(nonce, nonce, plain, []byte(current.id)), current.id, nil
}

func (r *Ring) open(sealed []byte, id string) (text []byte, key [16]byte, err error) {
	for _, s := range r.secrets {
		if s.id != id || s.aead == nil {
			continue
		}
		size := s.aead.NonceSize()
		if len(sealed) < size {
			return nil, key, errResponse
		}
		plain, err := s.aead.Open(nil, sealed[:size], sealed[size:], []byte(id))
		if err != nil || len(plain) < len(key) {
			return nil, key, fmt.Errorf("httponce: a response sealed with %q cannot be opened: %w", id, errors.Join(err, errResponse))
		}
		return plain[len(key):], [16]byte(plain), nil
	}
	return nil, key, fmt.Errorf("httponce: the response was sealed with the secret %q, which is not in the Ring", id)
}

// seals reports whether there is a current secret.
func (r *Ring) seals() bool { return r != nil && r.secrets[0].aead != nil }

// marks are what a digest may have been recorded as, the current one first.
func (r *Ring) marks(digest []byte) [][]byte {
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
	if s.aead == nil {
		return digest
	}
	h := hmac.New(sha256.New, s.marks)
	h.Write(digest)
	return h.Sum(nil)
}
