// Package checksum detects damaged outcomes, and a different input for a known
// key. A checksum does not detect forgery.
package checksum

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Of returns a CRC-32C of the key that an outcome belongs to, which reveals an
// outcome in the wrong row, and of the stored outcome. It never changes,
// because stored outcomes depend on it.
func Of(key [16]byte, contentType string, body []byte, flags ...bool) uint32 {
	head := append(make([]byte, 0, 64), key[:]...)
	set := byte(0)
	for i, flag := range flags {
		if flag {
			set |= 1 << i
		}
	}
	head = append(head, set)
	head = binary.BigEndian.AppendUint32(head, uint32(len(contentType)))
	head = append(head, contentType...)
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body)
}

// Fingerprint returns a digest of the input of a key, keyed by secret if there
// is one. It covers the key, so that equal inputs of different keys have
// different fingerprints.
func Fingerprint(secret []byte, key [16]byte, input []byte) [sha256.Size]byte {
	if len(secret) == 0 {
		return sha256.Sum256(append(append(make([]byte, 0, 128), key[:]...), input...))
	}
	return keyed(secret, key, input)
}

func keyed(secret []byte, key [16]byte, input []byte) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, secret)
	h.Write(key[:])
	h.Write(input)
	h.Sum(sum[:0])
	return sum
}
