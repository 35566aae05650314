package httponce

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/effectively-once/once"
)

// TestCanonicalJSONIsExact: two bodies that are different requests are never taken for one.
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

// TestDeepJSON: JSON of great depth costs neither the stack of the program nor its time.
func TestDeepJSON(t *testing.T) {
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

// TestAnnouncedBody: who announces a large body, and sends nothing, costs no memory.
func TestAnnouncedBody(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", iotest.ErrReader(io.ErrUnexpectedEOF))
	r.ContentLength = 1 << 30
	x := newExchange(&settings{Options: Options{MaxBody: 1 << 30}, bodies: &bodies{held: make(map[once.Key]*heldBody)}}, httptest.NewRecorder(), r)
	heldBodies = sync.Pool{New: heldBodies.New} // none that was used before
	if x.readBody() {
		t.Error("it was read")
	}
	if got := cap(x.held.data); got > 0 {
		t.Errorf("%d bytes were made ready", got)
	}
}

// TestLimiterCounts: whoever enters has been counted, at every moment, and whoever leaves is forgotten in the end.
func TestLimiterCounts(t *testing.T) {
	l := newLimiter(Limits{Open: 10, PerSecond: 3, Burst: 1})
	now := time.Unix(0, 0)
	for i := range 1000 {
		caller := fmt.Sprint(i)
		if _, wait := l.enter(caller, "a", now); wait != 0 {
			t.Fatalf("the first has to wait %v", wait)
		}
		l.leave(caller, "a", admitted, false)
		// A third of a second, less half a nanosecond: not yet a whole new token.
		if _, wait := l.enter(caller, "b", now.Add(333_333_333)); wait == 0 {
			l.leave(caller, "b", admitted, false)
		}
		if open := l.callers[caller].open; len(open) != 0 {
			t.Fatalf("%v are open", open)
		}
		if _, wait := l.enter(caller, "c", now.Add(333_333_333)); wait == 0 {
			t.Fatal("it was let in, and nothing was counted")
		}
	}
	l.enter("last", "a", now.Add(time.Hour))
	if len(l.callers) != 1 {
		t.Errorf("%d callers are remembered", len(l.callers))
	}
}
