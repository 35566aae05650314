package sqlschema

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// headerJSON is a message header as rows keep it. JSON strings must be valid
// UTF-8, so names and values that are not are kept in base64.
type headerJSON struct {
	Text   map[string]string `json:"text,omitempty"`
	Base64 map[string][]byte `json:"base64,omitempty"` // the names are in base64 too
}

// EncodeHeader encodes the header of a message for its row. An empty header is
// an empty text.
func EncodeHeader(all map[string]string) (string, error) {
	if len(all) == 0 {
		return "", nil
	}
	h := headerJSON{Text: make(map[string]string), Base64: make(map[string][]byte)}
	for name, value := range all {
		if utf8.ValidString(name) && utf8.ValidString(value) {
			h.Text[name] = value
		} else {
			h.Base64[base64.StdEncoding.EncodeToString([]byte(name))] = []byte(value)
		}
	}
	text, err := json.Marshal(h)
	return string(text), err
}

// DecodeHeader decodes what [EncodeHeader] returned.
func DecodeHeader(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	var h headerJSON
	r := json.NewDecoder(strings.NewReader(text))
	r.DisallowUnknownFields() // such as names that are not inside of text: they would be lost
	if err := r.Decode(&h); err != nil {
		return nil, fmt.Errorf(`the column header is not like {"text": {"name": "value"}}: %w`, err)
	}
	if _, err := r.Token(); err != io.EOF {
		return nil, errors.New(`the column header is not like {"text": {"name": "value"}}: more follows`)
	}
	all := h.Text
	if all == nil {
		all = make(map[string]string)
	}
	for name, value := range h.Base64 {
		raw, err := base64.StdEncoding.DecodeString(name)
		if err != nil {
			return nil, fmt.Errorf("the column header has a name that is not in base64: %w", err)
		}
		all[string(raw)] = string(value)
	}
	return all, nil
}

// EncodeTime encodes the time of a message for its row, with nanoseconds and
// time zone. The zero time is an empty text.
func EncodeTime(produced time.Time) string {
	if produced.IsZero() {
		return ""
	}
	return produced.Format(time.RFC3339Nano)
}

// DecodeTime decodes what [EncodeTime] returned.
func DecodeTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("the column produced is not in RFC 3339: %w", err)
	}
	return at, nil
}

// ValidText replaces bytes that some database refuses in a text: those that are
// not UTF-8, and NUL. Reasons need it, since they often are the text of an
// error, which may hold anything.
func ValidText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}
