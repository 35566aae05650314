// Package name digests and checks the parts of a key, and makes other text fit
// to be stored with them.
package name

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limit is the maximum number of bytes of a part.
const Limit = 255

// UnknownOutcome begins the reason of a message whose effect may have happened.
const UnknownOutcome = "unknown outcome: "

// Digest returns a version 8 UUID of parts. Each part is hashed with its
// length, so different parts never have the same digest.
func Digest(parts ...string) [16]byte {
	b := append(make([]byte, 0, 256), "once.key.1"...)
	for _, part := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	id := [16]byte(sum[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// Format returns a UUID as text.
func Format(id [16]byte) string {
	var b [36]byte
	hex.Encode(b[:], id[:4])
	hex.Encode(b[9:], id[4:6])
	hex.Encode(b[14:], id[6:8])
	hex.Encode(b[19:], id[8:10])
	hex.Encode(b[24:], id[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// Parse returns the [Digest] that Format made a text of, or zero for any other
// text.
func Parse(text string) (id [16]byte) {
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(b) != len(id) || b[6]>>4 != 8 || b[8]>>6 != 2 || Format([16]byte(b)) != text {
		return id
	}
	return [16]byte(b)
}

// CheckKey returns an error if a part of a key is invalid.
func CheckKey(scope, operation, id string) error {
	switch {
	case id == "":
		return errors.New("the ID is empty: name the unit of work, for example by its order id")
	case operation == "":
		return errors.New("the Operation is empty: say what is done, for example pay")
	case strings.Contains("/"+operation+"/", "//"):
		return fmt.Errorf("the Operation %q has an empty step", operation)
	}
	return cmp.Or(Check("Scope", scope), Check("Operation", operation), Check("ID", id))
}

// Check requires at most Limit bytes of valid UTF-8 without control characters.
// Unicode never changes what a control character is. It does change what is
// printable, and two builds that disagree about a key would run its work twice.
func Check(what, part string) error {
	if len(part) > Limit {
		return fmt.Errorf("the %s has %d bytes, the limit is %d: shorten it or use a digest of it", what, len(part), Limit)
	}
	if isPlain(part) {
		return nil
	}
	if !utf8.ValidString(part) {
		return fmt.Errorf("the %s %q is not valid UTF-8", what, part)
	}
	if i := strings.IndexFunc(part, unicode.IsControl); i >= 0 {
		return fmt.Errorf("the %s %q has a control character at byte %d", what, part, i)
	}
	return nil
}

// isPlain reports whether text is printable ASCII, as nearly all names are.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

const maxReason = 500

// Reason shortens the text of an error for storing. Databases refuse a zero
// byte and a partial character.
func Reason(text string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), maxReason)], "\x00", ""), "")
}

// Line makes text fit for a header: one line of at most limit bytes, in which
// control characters become spaces.
func Line(text string, limit int) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	return strings.ToValidUTF8(line[:min(len(line), limit)], "")
}

// Token returns a random name.
func Token() (token [16]byte) {
	rand.Read(token[:]) // never fails: it ends the program instead
	return token
}

// Ordered returns a version 7 UUID. Names that are made later by the same clock
// have greater bytes, to the millisecond.
func Ordered(now time.Time) string {
	id := Token()
	var stamp [8]byte
	binary.BigEndian.PutUint64(stamp[:], uint64(now.UnixMilli()))
	copy(id[:6], stamp[2:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return Format(id)
}
