// Package seal encrypts and authenticates what is stored.
//
// Each text is sealed with AES-256-GCM under a key and a nonce of its own, which HKDF-SHA256 derives from the secret and
// a random salt of 192 bits. No two texts share a key unless their salts collide, so the limit of 2^32 random nonces
// for one key of AES-GCM does not apply: after 2^80 texts under one secret the chance of a single collision is 2^-33.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

const (
	version     = 1
	saltSize    = 24
	checkSize   = 4
	keySize     = 32
	nonceSize   = 12
	tagSize     = 16
	leastSecret = 32
	longestID   = 32
)

// ErrKey is wrapped by errors of Open for a text whose secret is not in the
// ring.
var ErrKey = errors.New("the secret is not there")

// ErrForged is wrapped by errors of Open for a text that was changed, or sealed
// for another context.
var ErrForged = errors.New("changed, or sealed for something else")

// Secret is a key of a Ring. The zero Secret seals nothing.
type Secret struct {
	ID    string
	Bytes []byte
}

// Ring has the secret that seals and all secrets that open. It is safe for
// concurrent use.
type Ring struct{ secrets []secret }

type secret struct {
	id    string
	prk   []byte          // what the keys of texts are derived from
	check [checkSize]byte // tells another secret with the same ID from damage
}

// NewRing returns a ring of these secrets. The first one seals.
func NewRing(secrets ...Secret) (*Ring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("a Ring needs a secret")
	}
	ring, seen := new(Ring), make(map[string]bool)
	for i, s := range secrets {
		if i == 0 && s.ID == "" && s.Bytes == nil {
			ring.secrets = append(ring.secrets, secret{})
			continue
		}
		if seen[s.ID] || !validID(s.ID) {
			return nil, fmt.Errorf("the ID %q of a secret is used twice, or is not 1 to %d letters, digits, - and _", s.ID, longestID)
		}
		seen[s.ID] = true
		if len(s.Bytes) < leastSecret {
			return nil, fmt.Errorf("the secret %q has %d bytes, at least %d random ones are needed", s.ID, len(s.Bytes), leastSecret)
		}
		made, err := newSecret(s)
		if err != nil {
			return nil, fmt.Errorf("the secret %q: %w", s.ID, err)
		}
		ring.secrets = append(ring.secrets, made)
	}
	return ring, nil
}

func newSecret(s Secret) (made secret, err error) {
	made.id = s.ID
	if made.prk, err = hkdf.Extract(sha256.New, s.Bytes, []byte("once seal 1")); err != nil {
		return made, err
	}
	check, err := hkdf.Expand(sha256.New, made.prk, "check", checkSize)
	copy(made.check[:], check)
	return made, err
}

func validID(id string) bool {
	return id != "" && len(id) <= longestID && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// Seals reports whether the ring has a secret that seals.
func (r *Ring) Seals() bool { return r != nil && r.secrets[0].prk != nil }

// Seal returns text sealed with the first secret. Only the same context opens
// it. Seal panics if the ring does not seal.
func (r *Ring) Seal(text, context []byte) []byte {
	s := r.secrets[0]
	if s.prk == nil {
		panic("seal: the ring only opens")
	}
	head := 2 + len(s.id) + checkSize + saltSize
	sealed := make([]byte, 0, head+len(text)+tagSize)
	sealed = append(sealed, version, byte(len(s.id)))
	sealed = append(sealed, s.id...)
	sealed = append(sealed, s.check[:]...)
	sealed = sealed[:head]
	salt := sealed[head-saltSize:]
	rand.Read(salt) // never fails: it ends the program instead
	aead, nonce := s.derive(salt)
	return aead.Seal(sealed, nonce, text, associated(sealed, context))
}

// IsSealed reports whether b looks like sealed text, whichever secret sealed
// it.
func IsSealed(b []byte) bool {
	return len(b) >= 2 && b[0] == version && len(b) >= 2+int(b[1])+checkSize+saltSize+tagSize && validID(string(b[2:2+int(b[1])]))
}

// Open returns the text that was sealed for the context.
func (r *Ring) Open(sealed, context []byte) ([]byte, error) {
	if len(sealed) < 2 || sealed[0] != version {
		return nil, fmt.Errorf("%w: this is nothing that was sealed", ErrForged)
	}
	head := 2 + int(sealed[1]) + checkSize + saltSize
	if len(sealed) < head {
		return nil, fmt.Errorf("%w: it is cut off", ErrForged)
	}
	id := string(sealed[2 : 2+int(sealed[1])])
	check := sealed[head-saltSize-checkSize : head-saltSize]
	if r != nil {
		for _, s := range r.secrets {
			if s.id != id || s.prk == nil {
				continue
			}
			if !hmac.Equal(check, s.check[:]) {
				return nil, fmt.Errorf("%w: it was sealed with another secret than the one that is called %q here: give this program the one that sealed it, and the other one an ID of its own", ErrKey, id)
			}
			aead, nonce := s.derive(sealed[head-saltSize : head])
			text, err := aead.Open(nil, nonce, sealed[head:], associated(sealed[:head], context))
			if err != nil {
				return nil, fmt.Errorf("%w: it was said to be sealed with the secret %q", ErrForged, id)
			}
			return text, nil
		}
	}
	return nil, fmt.Errorf("%w: it was sealed with the secret %q, which is not in the Ring: add it to those of this program (the command reads ONCE_SEAL_SECRETS)", ErrKey, id)
}

// derive returns the cipher and the nonce of one text.
func (s secret) derive(salt []byte) (cipher.AEAD, []byte) {
	derived, err := hkdf.Expand(sha256.New, s.prk, "text "+string(salt), keySize+nonceSize)
	if err != nil {
		panic(err) // 44 bytes are never too many
	}
	block, err := aes.NewCipher(derived[:keySize])
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // AES has blocks of 16 bytes
	}
	return aead, derived[keySize:]
}

// associated returns the data that is authenticated and not encrypted.
func associated(head, context []byte) []byte {
	return append(append(make([]byte, 0, len(head)+len(context)), head...), context...)
}

// Join concatenates parts with their lengths, so that different parts never
// give the same text.
func Join(parts ...[]byte) []byte {
	size := 0
	for _, part := range parts {
		size += len(part) + 8
	}
	b := make([]byte, 0, size)
	for _, part := range parts {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return b
}

// Split returns the parts that Join concatenated.
func Split(b []byte) (parts [][]byte, err error) {
	for len(b) > 0 {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil, fmt.Errorf("%w: its parts are cut off", ErrForged)
		}
		parts = append(parts, b[size:size+int(n):size+int(n)])
		b = b[size+int(n):]
	}
	return parts, nil
}
