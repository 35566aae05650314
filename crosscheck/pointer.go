package crosscheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// parseJSON reads one JSON value. Numbers stay as they are written.
func parseJSON(text []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("there is more after the value")
	}
	return v, nil
}

// checkPointer returns an error if a text is not a JSON pointer such as /amount.
func checkPointer(p string) error {
	if !strings.HasPrefix(p, "/") {
		return fmt.Errorf("%q is not a JSON pointer: write it like /amount", p)
	}
	return nil
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// at returns the value at a JSON pointer (RFC 6901).
func at(v any, pointer string) (found any, ok bool) {
	for _, step := range strings.Split(pointer, "/")[1:] {
		switch in := v.(type) {
		case map[string]any:
			if v, ok = in[unescape.Replace(step)]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(in) {
				return nil, false
			}
			v = in[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// scalar returns a string or a number as text.
func scalar(v any) (text string, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	}
	return "", false
}
