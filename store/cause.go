package store

import (
	"bytes"
	"encoding/json"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// KeyHeader is [broker.KeyHeader].
const KeyHeader = broker.KeyHeader

// FormatCause returns a key as the outbox keeps it: a JSON array of its scope,
// operation and ID, without spaces. Equal keys have equal texts.
func FormatCause(k once.Key) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode([3]string{k.Scope, k.Operation, k.ID}) // strings can be encoded
	return string(bytes.TrimRight(b.Bytes(), "\n"))
}

// ParseCause is the reverse of FormatCause. ok is false for any other text, which
// other programs may have put.
func ParseCause(text string) (k once.Key, ok bool) {
	var parts []string
	if json.Unmarshal([]byte(text), &parts) != nil || len(parts) != 3 {
		return k, false
	}
	k = once.Key{Scope: parts[0], Operation: parts[1], ID: parts[2]}
	return k, k.Validate() == nil
}
