package once_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/store/memstore"
)

const answer = "the balance is 4711"

func newRing(t testing.TB, ids ...string) *once.Ring {
	t.Helper()
	var secrets []once.Secret
	for _, id := range ids {
		if id == "" {
			secrets = append(secrets, once.Secret{})
			continue
		}
		secrets = append(secrets, once.Secret{ID: id, Bytes: bytes.Repeat([]byte(id[:1]), 32)})
	}
	ring, err := once.NewRing(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// forged is a memstore whose records were changed by somebody with access to
// the database.
type forged struct {
	hooks
	forge func(*once.Record)
}

func sealing(s *memstore.Store, how once.Sealing) *forged {
	return &forged{hooks: hooks{Store: s, options: once.Options{Sealing: how}.Ready()}}
}

func (f *forged) changed(rec once.Record) once.Record {
	if f.forge != nil {
		f.forge(&rec)
		rec.Outcome.Sum = checksum.Of(rec.Key.UUID(), rec.Outcome.ContentType, rec.Outcome.Body, rec.Outcome.Rejected, rec.Outcome.Omitted)
	}
	return rec
}

func (f *forged) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	rec, err := f.hooks.Claim(ctx, r)
	return f.changed(rec), err
}

func (f *forged) Get(ctx context.Context, k once.Key) (once.Record, error) {
	rec, err := f.hooks.Get(ctx, k)
	return f.changed(rec), err
}

func TestAnswersAreSealed(t *testing.T) {
	shared := memstore.New(nil)
	ring := newRing(t, "a")
	s := sealing(shared, once.Sealing{Ring: ring, Only: once.SealAll})
	tx := &once.Operation[string]{Name: "tx"}
	no := &once.Operation[string]{Name: "no", OnUnknown: once.Park}
	nothing := &once.Operation[struct{}]{Name: "nothing"}
	for range 2 {
		for name, call := range map[string]func() (string, error){
			"Do": func() (string, error) {
				return once.Do(testCtx, s, parked.For("1").Input([]byte("in")), func(context.Context, once.Key) (string, error) { return answer, nil })
			},
			"a rejection": func() (string, error) {
				got, err := once.Do(testCtx, s, no.For("1"), func(context.Context, once.Key) (string, error) { return answer, once.ErrRejected })
				if !errors.Is(err, once.ErrRejected) {
					t.Errorf("a rejection came back as %v", err)
				}
				return got, nil
			},
			"DoTx": func() (string, error) {
				return once.DoTx(testCtx, s, tx.For("1"), func(context.Context, *memstore.Tx) (string, error) { return answer, nil })
			},
			"an answer of one value": func() (string, error) {
				_, err := once.DoTx(testCtx, s, nothing.For("1"), func(context.Context, *memstore.Tx) (v struct{}, err error) { return v, nil })
				return answer, err
			},
		} {
			if got, err := call(); err != nil || got != answer {
				t.Errorf("%s: got %q, %v", name, got, err)
			}
		}
	}
	for _, op := range []string{"park", "no", "tx", "nothing"} {
		rec := wantStatus(t, shared, once.Key{Operation: op, ID: "1"}, once.Done)
		if bytes.Contains(rec.Outcome.Body, []byte("4711")) || strings.Contains(rec.Outcome.ContentType, "json") {
			t.Errorf("the answer of %s can be read: %q of the type %q", op, rec.Outcome.Body, rec.Outcome.ContentType)
		}
		opened, err := (&once.Sealing{Ring: ring}).Open(rec)
		if err != nil || opened.ContentType != "application/json" || op != "nothing" && !bytes.Contains(opened.Body, []byte("4711")) {
			t.Errorf("the answer of %s opens as %q, %v", op, opened.Body, err)
		}
	}
}

// Write access to the database does not suffice to replace one answer by
// another.
func TestSealedAnswerCannotBeReplaced(t *testing.T) {
	shared := memstore.New(nil)
	s := sealing(shared, once.Sealing{Ring: newRing(t, "a"), Only: once.SealOutcomes})
	work := parked.For("1").Input([]byte("in"))
	var ran counter
	for _, w := range []once.Work[string]{work, parked.For("2").Input([]byte("in"))} {
		if _, err := once.Do(testCtx, s, w, ran.run(answer, nil)); err != nil {
			t.Fatal(err)
		}
	}
	other := get(t, shared, once.Key{Operation: "park", ID: "2"})
	for name, forge := range map[string]func(*once.Record){
		"by a plain one": func(r *once.Record) {
			r.Outcome = once.Outcome{Body: []byte(`"forged"`), ContentType: "application/json"}
		},
		"by a plain rejection":        func(r *once.Record) { r.Outcome = once.Outcome{Rejected: true, Omitted: true} },
		"by that of another key":      func(r *once.Record) { r.Outcome = other.Outcome },
		"by a no":                     func(r *once.Record) { r.Outcome.Rejected = true },
		"by one that was not kept":    func(r *once.Record) { r.Outcome.Omitted = true },
		"by that of another input":    func(r *once.Record) { r.Fingerprint = nil },
		"by one that is no answer":    func(r *once.Record) { r.Outcome.Body = []byte("x") },
		"by nothing":                  func(r *once.Record) { r.Outcome.Body = nil },
		"by itself with another bit":  func(r *once.Record) { r.Outcome.Body = bytes.Clone(r.Outcome.Body); r.Outcome.Body[40] ^= 1 },
		"by itself as a plain answer": func(r *once.Record) { r.Outcome.ContentType = "application/json" },
	} {
		s.forge = forge
		got, err := once.Do(testCtx, s, work, ran.run("", nil))
		if !errors.Is(err, once.ErrCorrupt) || got != "" {
			t.Errorf("an answer that was replaced %s is %q, %v", name, got, err)
		}
		if _, ok := once.MayRetry(err); ok {
			t.Errorf("%s: a retry cannot help", name)
		}
		if errors.Is(err, once.ErrRejected) {
			t.Errorf("%s: a forged no is believed", name)
		}
	}
	// Without an input, nothing but the key tells two answers apart.
	s.forge = nil
	for _, id := range []string{"3", "4"} {
		if _, err := once.Do(testCtx, s, parked.For(id), ran.run(answer, nil)); err != nil {
			t.Fatal(err)
		}
	}
	bare := get(t, shared, once.Key{Operation: "park", ID: "3"})
	s.forge = func(r *once.Record) { r.Outcome = bare.Outcome }
	if got, err := once.Do(testCtx, s, parked.For("4"), ran.run("", nil)); !errors.Is(err, once.ErrCorrupt) || got != "" {
		t.Errorf("an answer that was replaced by that of another key, both without an input, is %q, %v", got, err)
	}
	s.forge = nil
	if got, err := once.Do(testCtx, s, work, ran.run("", nil)); err != nil || got != answer {
		t.Errorf("the true one is %q, %v", got, err)
	}
	ran.ran(t, 4)
}

func TestSecretsAreChangedInSteps(t *testing.T) {
	shared := memstore.New(nil)
	var ran counter
	call := func(id string, how once.Sealing) (string, error) {
		return once.Do(testCtx, sealing(shared, how), parked.For(id), ran.run(answer, nil))
	}
	must := func(step, id string, how once.Sealing) {
		t.Helper()
		if got, err := call(id, how); err != nil || got != answer {
			t.Errorf("%s: %s is %q, %v", step, id, got, err)
		}
	}
	none, opens := once.Sealing{}, once.Sealing{Ring: newRing(t, "", "a")}
	seals := once.Sealing{Ring: newRing(t, "a")}
	only := once.Sealing{Ring: newRing(t, "a"), Only: once.SealAll}
	must("before", "plain", none)
	must("the secret is handed out", "plain too", opens)
	must("it seals", "sealed by a", seals)
	must("those who only open read it", "sealed by a", opens)
	must("and what is plain", "plain", seals)
	must("sealed only", "sealed by a", only)
	if _, err := call("plain", only); !errors.Is(err, once.ErrCorrupt) {
		t.Errorf("sealed only gives a plain answer: %v", err)
	}
	next := once.Sealing{Ring: newRing(t, "b", "a"), Only: once.SealAll}
	must("the next secret", "sealed by b", next)
	must("opens the old", "sealed by a", next)
	last := once.Sealing{Ring: newRing(t, "b"), Only: once.SealAll}
	must("the old one is gone", "sealed by b", last)
	for name, how := range map[string]once.Sealing{"a secret that is missing": last, "no ring": none,
		"a secret with other bytes": {Ring: func() *once.Ring {
			r, _ := once.NewRing(once.Secret{ID: "a", Bytes: bytes.Repeat([]byte("z"), 32)})
			return r
		}()}} {
		_, err := call("sealed by a", how)
		if !errors.Is(err, once.ErrOutcomeUnavailable) || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must("and it is still there", "sealed by a", next)
	ran.ran(t, 4)
}

func TestDecisionsAreSealed(t *testing.T) {
	shared := memstore.New(nil)
	s := sealing(shared, once.Sealing{Ring: newRing(t, "a"), Only: once.SealAll})
	k := parked.For("1").Key()
	if err := once.MarkDone(testCtx, s, crashed(t, s, k), once.Outcome{Body: []byte(`"` + answer + `"`), ContentType: "application/json"}, "seen"); err != nil {
		t.Fatal(err)
	}
	if rec := get(t, shared, k); bytes.Contains(rec.Outcome.Body, []byte("4711")) {
		t.Errorf("a decision can be read: %q", rec.Outcome.Body)
	}
	if got, err := once.Do(testCtx, s, parked.For("1"), never[string](t)); err != nil || got != answer {
		t.Errorf("got %q, %v", got, err)
	}
	asked := &once.Operation[string]{Name: "asked", Lookup: func(context.Context, once.Key) (string, bool, error) { return answer, true, nil }}
	crashed(t, s, asked.For("1").Key())
	if got, err := once.Do(testCtx, s, asked.For("1"), never[string](t)); err != nil || got != answer {
		t.Errorf("asked: got %q, %v", got, err)
	}
}

func TestSealingThatMakesNoSenseIsRefused(t *testing.T) {
	for name, how := range map[string]once.Sealing{
		"only without a ring":       {Only: once.SealAll},
		"only with one that opens":  {Ring: newRing(t, "", "a"), Only: once.SealAll},
		"parts without a ring":      {Seal: once.SealOutcomes},
		"only what is never sealed": {Ring: newRing(t, "a"), Seal: once.SealOutbox, Only: once.SealOutcomes},
		"a part that is none":       {Ring: newRing(t, "a"), Seal: 64},
	} {
		if _, err := once.Do(testCtx, sealing(memstore.New(nil), how), parked.For("1"), never[string](t)); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := sealing(memstore.New(nil), once.Sealing{Only: once.SealAll})
	asked := &once.Operation[string]{Name: "asked", Lookup: func(context.Context, once.Key) (string, bool, error) { return answer, true, nil }}
	if now, err := asked.Ask(testCtx, s, crashed(t, s, asked.For("1").Key())); !errors.Is(err, once.ErrInvalid) || now.Status != once.Unknown {
		t.Errorf("an answer was recorded that nobody would accept: %v, %v", now.Status, err)
	}
	raw := &once.Operation[once.Outcome]{Name: "raw"}
	if _, err := raw.Outcome(once.Outcome{ContentType: "application/vnd.once.sealed"}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("the content type of what is sealed: %v", err)
	}
}

// The text of an error may look sealed. It is sealed all the same, and sealed
// text is not sealed twice.
func TestTextsThatOnlyLookSealedAreSealed(t *testing.T) {
	ring, of := newRing(t, "a"), []byte("context")
	for _, text := range []string{"sealed: the envelope of number 4711", "sealed:", "sealed:AQ", "sealed:YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXo"} {
		sealed := ring.SealText(text, of)
		if sealed == text || ring.OpenText(sealed, of) != text {
			t.Errorf("%q is stored as %q, and opened as %q", text, sealed, ring.OpenText(sealed, of))
		}
		if again := ring.SealText(sealed, of); again != sealed {
			t.Errorf("%q is sealed twice", text)
		}
	}
}
