package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
)

// damaged is an operation that resends. It waits, because a claim that a slow
// server answers late is taken for one that met another.
var damaged = &once.Operation[string]{Name: "damaged", OnUnknown: once.Resend, Policy: once.Policy{Wait: time.Minute}}

const stored = `"answer"` // as in the row

// damages are what a defective disk, a restore or a person can do to the row of
// a unit that is done, as the SET of an UPDATE.
func damages(e engine.Engine) map[string]string {
	body := func(text string) string { return "outcome = " + bytesOf(e, []byte(text)) }
	return map[string]string{
		"a flipped bit":           body(`"answes"`),
		"a flipped first byte":    body("\xa2" + stored[1:]),
		"cut short":               body(stored[:5]),
		"longer":                  body(stored + "\x00"),
		"empty":                   body(""),
		"missing":                 "outcome = NULL",
		"another sum":             "sum = sum + 1",
		"a sum of zero":           "sum = 0",
		"a no made of a yes":      "flags = 1",
		"an answer left out":      "flags = 2",
		"another type":            "content_type = 'text/plain'",
		"an unknown status":       "status = 6",
		"a high bit in status":    "status = 12",
		"a negative status":       "status = -1",
		"another scope":           "scope = 'somebody else'",
		"another operation":       "operation = 'damages'",
		"another id":              "id = 'another'",
		"the answer of another":   "outcome = " + bytesOf(e, []byte(`"theirs"`)) + ", sum = (SELECT * FROM (SELECT sum FROM once_record WHERE id = 'theirs') AS s)",
		"a no that was never one": "flags = 3",
	}
}

// TestDamagedRecords damages the row of a unit that is done in each way, and
// calls it again in each way.
func TestDamagedRecords(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, _ := with(t, e)
		_, err := once.Do(t.Context(), d.Store, damaged.For("theirs"), func(context.Context, once.Key) (string, error) { return "theirs", nil })
		must(t, err)
		n := 0
		for name, set := range damages(e) {
			n++
			id := fmt.Sprint("unit ", n)
			finished(t, d, id)
			d.MustExec(t, fmt.Sprintf("UPDATE once_record SET %s WHERE id = '%s'", set, id))
			for range 2 { // the first call must not repair anything
				for how, call := range calls(d, damaged, id, never(t, name)) {
					answer, err := call(t.Context())
					if _, again := once.MayRetry(err); !errors.Is(err, once.ErrCorrupt) || again {
						t.Errorf("%s: %s returned %q, %v, may retry %v; want ErrCorrupt, for good", name, how, answer, err, again)
					}
				}
			}
			wantEffects(t, d, ranIn(id), 0)
		}
	})
}

// finished returns a unit that is done.
func finished(t *testing.T, d *engine.Database, id string) {
	t.Helper()
	_, err := once.Do(t.Context(), d.Store, damaged.For(id).Input([]byte("input")), func(context.Context, once.Key) (string, error) {
		return "answer", nil
	})
	must(t, err)
	for how, call := range calls(d, damaged, id, never(t, "a replay")) {
		if answer, err := call(t.Context()); answer != "answer" || err != nil {
			t.Fatalf("before the damage, %s returned %q, %v", how, answer, err)
		}
	}
}

var errRan = errors.New("the work has run")

// TestDamagedFingerprint checks that a damaged fingerprint, which has no
// checksum, is a mismatch: the work does not run. Calls without an input are
// not compared, and return the answer.
func TestDamagedFingerprint(t *testing.T) {
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, _ := with(t, e)
		for name, set := range map[string]string{
			"other bytes": "fingerprint = " + bytesOf(e, []byte("0123456789abcdef0123456789abcdef")),
			"cut short":   "fingerprint = " + bytesOf(e, []byte{1}),
		} {
			id := name
			finished(t, d, id)
			d.MustExec(t, fmt.Sprintf("UPDATE once_record SET %s WHERE id = '%s'", set, id))
			u := damaged.For(id).Input([]byte("input"))
			_, err := once.Do(t.Context(), d.Store, u, func(context.Context, once.Key) (string, error) { return "", never(t, name)() })
			wantError(t, name+": Do", err, once.ErrMismatch)
			_, err = once.DoTx(t.Context(), d.Store, u, func(ctx context.Context, tx engine.Tx) (string, error) {
				return "", cmp.Or(effect(ctx, tx, id), errRan)
			})
			wantError(t, name+": DoTx", err, once.ErrMismatch)
			for how, call := range calls(d, damaged, id, never(t, name)) {
				if answer, err := call(t.Context()); answer != "answer" || err != nil {
					t.Errorf("%s, without input: %s returned %q, %v", name, how, answer, err)
				}
			}
		}
	})
}
