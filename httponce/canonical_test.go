package httponce

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestCanonicalJSONIsExact: two different requests never have equal canonical
// bodies.
func TestCanonicalJSONIsExact(t *testing.T) {
	same := func(a, b string) bool {
		x, errA := CanonicalJSON(nil, []byte(a))
		y, errB := CanonicalJSON(nil, []byte(b))
		return errA == nil && errB == nil && bytes.Equal(x, y)
	}
	for _, pair := range [][2]string{
		{`{"account":1712345678901234567}`, `{"account":1712345678901234568}`},
		{`{"amount":9007199254740993}`, `{"amount":9007199254740992}`},
		{`{"amount":0.12345678901234567}`, `{"amount":0.12345678901234568}`},
		{`[1e-400]`, `[0]`}, {`[1e-400]`, `[2e-400]`},
		{`{"a":1,"a":2}`, `{"a":2}`}, {`{"a":1,"a":2}`, `{"a":1}`},
		{`"\ud800"`, `"\ud801"`}, {"\"\xff\"", "\"\xfe\""}, {`"\ud800"`, `"\ufffd"`},
		{`[-9007199254740993]`, `[-9007199254740992]`}, {`[0.` + strings.Repeat("0", 400) + `1]`, `[0]`}, {`["\\\\",9007199254740993]`, `["\\\\",9007199254740992]`},
		{`1`, `"1"`}, {`[]`, `{}`}, {`null`, ``}, {`{"a":null}`, `{}`}, {`true`, `"true"`}, {`1 2`, `1`}, {`{"a":1}x`, `{"a":1}`}, {`["a\u0000"]`, `["a"]`},
	} {
		if same(pair[0], pair[1]) {
			t.Errorf("%s and %s are the same", pair[0], pair[1])
		}
	}
	for _, pair := range [][2]string{
		{`{"card":"4242424242424242","amount":1}`, `{"amount":1.0, "card":"4242424242424242"}`}, {`[1e2, 0.5]`, `[100,5e-1]`}, {`["a\"1234567890123456789",1]`, "[\"a\\u00221234567890123456789\" , 1]"},
	} {
		if !same(pair[0], pair[1]) {
			t.Errorf("%s and %s differ", pair[0], pair[1])
		}
	}
}

// TestDeepJSONIsCheap: deeply nested JSON exhausts neither stack nor time.
func TestDeepJSONIsCheap(t *testing.T) {
	for _, open := range []string{"[", `{"a":`, "[[],"} {
		deep := []byte(strings.Repeat(open, 8<<20/len(open)))
		begun := time.Now()
		if same, err := CanonicalJSON(nil, deep); err != nil || !bytes.Equal(same, deep) {
			t.Errorf("%s: %v", open, err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("%s took %v", open, took)
		}
	}
}
