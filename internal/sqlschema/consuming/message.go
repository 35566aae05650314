package consuming

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"
)

// header is the JSON of headers, in which texts are valid UTF-8.
type header struct {
	Text   map[string]string `json:"text,omitempty"`
	Base64 map[string][]byte `json:"base64,omitempty"` // the names, too
}

// EncodeHeader writes the header of a message as it is kept in rows; none is empty.
func EncodeHeader(all map[string]string) (string, error) {
	if len(all) == 0 {
		return "", nil
	}
	h := header{Text: make(map[string]string), Base64: make(map[string][]byte)}
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

// DecodeHeader reads what [EncodeHeader] has written.
func DecodeHeader(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	var h header
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return nil, err
	}
	all := h.Text
	if all == nil {
		all = make(map[string]string)
	}
	for name, value := range h.Base64 {
		raw, err := base64.StdEncoding.DecodeString(name)
		if err != nil {
			return nil, err
		}
		all[string(raw)] = string(value)
	}
	return all, nil
}

// EncodeTime writes a time as it is, to the nanosecond and with its zone; the zero time is empty.
func EncodeTime(produced time.Time) string {
	if produced.IsZero() {
		return ""
	}
	return produced.Format(time.RFC3339Nano)
}

// DecodeTime reads what [EncodeTime] has written.
func DecodeTime(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, text)
}
