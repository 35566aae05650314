package once

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

func TestChecksumCoversTheKeyAndEverything(t *testing.T) {
	key := Key{Operation: "pay", ID: "1"}
	out := Outcome{Body: []byte("body"), ContentType: "text/plain"}
	sum := out.checksum(key.UUID())
	if sum != 1953246302 { // stored with every outcome: another sum would make all of them unreadable
		t.Errorf("the sum of a known outcome is %d", sum)
	}
	for name, other := range map[string]Outcome{
		"body":     {Body: []byte("bodz"), ContentType: "text/plain"},
		"no body":  {ContentType: "text/plain"},
		"type":     {Body: []byte("body"), ContentType: "text/html"},
		"moved":    {Body: []byte("nbody"), ContentType: "text/plai"},
		"rejected": {Body: []byte("body"), ContentType: "text/plain", Rejected: true},
		"omitted":  {Body: []byte("body"), ContentType: "text/plain", Omitted: true},
	} {
		if other.checksum(key.UUID()) == sum {
			t.Errorf("%s: the same checksum", name)
		}
	}
	if out.checksum(Key{Operation: "pay", ID: "2"}.UUID()) == sum {
		t.Error("the outcome of another key has the same checksum")
	}
}

func FuzzOutcome(f *testing.F) {
	f.Add([]byte(`{"a":1}`), "application/json", false, uint(0))
	f.Add([]byte{0xff, 0}, "", true, uint(9))
	f.Fuzz(func(t *testing.T, body []byte, contentType string, rejected bool, bit uint) {
		key := Key{Operation: "pay", ID: "1"}
		op := &Operation[any]{Name: "pay"}
		out, _ := (&Options{MaxOutcome: len(body)}).Pack(key, nil, Outcome{Body: body, ContentType: contentType, Rejected: rejected})
		rec := Record{Key: key, Status: Done, Outcome: out}
		if _, err := replay(op, new(Sealing), rec, key.UUID()); errors.Is(err, ErrCorrupt) {
			t.Errorf("an intact outcome is taken for damaged: %v", err)
		}
		if len(body) == 0 {
			return
		}
		damaged := bytes.Clone(body)
		damaged[bit/8%uint(len(body))] ^= 1 << (bit % 8)
		rec.Outcome.Body = damaged
		if _, err := replay(op, new(Sealing), rec, key.UUID()); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a flipped bit was not noticed: %v", err)
		}
	})
}

// Whatever record a store returns, the work runs only if the record is the
// caller's own claim.
func FuzzRecord(f *testing.F) {
	f.Add(int(Done), int64(1), []byte("fingerprint"), []byte("{}"), "application/json", uint32(0), false)
	f.Add(-1, int64(-1), []byte{}, []byte{}, "", uint32(7), true)
	f.Fuzz(func(t *testing.T, status int, attempt int64, fingerprint, body []byte, contentType string, sum uint32, omitted bool) {
		rec := Record{Key: Key{Operation: "pay", ID: "1"}, Status: Status(status), Attempt: attempt, Fingerprint: fingerprint,
			Outcome: Outcome{Body: body, ContentType: contentType, Sum: sum, Omitted: omitted}}
		op := &Operation[string]{Name: "pay", OnUnknown: Park, Policy: Policy{Wait: NoWait}}
		s := fixed{options: Options{}.Ready(), rec: rec}
		_, err := Do(context.Background(), s, op.For("1").Input([]byte("x")), func(context.Context, Key) (string, error) {
			t.Error("ran")
			return "", nil
		})
		_ = rec.Status.String()
		if err == nil && rec.Status != Done {
			t.Errorf("a record in %v was answered", rec.Status)
		}
	})
}

// fixed is a store that always has the same record.
type fixed struct {
	Store
	options *Options
	rec     Record
}

func (f fixed) Options() *Options                                   { return f.options }
func (f fixed) Claim(context.Context, ClaimRequest) (Record, error) { return f.rec, nil }
func (f fixed) Get(context.Context, Key) (Record, error)            { return f.rec, nil }
func (f fixed) Settle(context.Context, Settlement) error            { return nil }
