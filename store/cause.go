package store

import (
	"bytes"
	"encoding/json"

	"github.com/effectively-once/once"
)

// KeyHeader is the header of a message with the key of the unit of work that has put it, as it travels: Key.String.
const KeyHeader = "once-key"

// FormatCause writes a key as the outbox keeps it, readable and equal for equal keys: a JSON array of its scope, operation
// and ID, without spaces.
func FormatCause(k once.Key) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode([3]string{k.Scope, k.Operation, k.ID}) // strings can be encoded
	return string(bytes.TrimRight(b.Bytes(), "\n"))
}

// ParseCause reads what FormatCause has written. It reports false for anything else, as others may have put.
func ParseCause(text string) (k once.Key, ok bool) {
	var parts []string
	if json.Unmarshal([]byte(text), &parts) != nil || len(parts) != 3 {
		return k, false
	}
	k = once.Key{Scope: parts[0], Operation: parts[1], ID: parts[2]}
	return k, k.Validate() == nil
}
