package docs

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// life is a key whose record passes a step of its life.
type life struct {
	t     *testing.T
	store *memstore.Store
	key   once.Key
}

func (l life) status() once.Status {
	rec, err := l.store.Get(l.t.Context(), l.key)
	if err != nil {
		l.t.Error(err)
	}
	return rec.Status
}

// become brings the record to the status at which a step begins.
func (l life) become(from once.Status) {
	fence := once.Fence{Key: l.key, Owner: [16]byte{1}, Attempt: 1}
	_, err := l.store.Claim(l.t.Context(), once.ClaimRequest{Fence: once.Fence{Key: l.key, Owner: fence.Owner}, Lease: time.Minute})
	if err == nil && from != once.Running {
		err = l.store.Settle(l.t.Context(), once.Settlement{Fence: fence, Status: from, KeepOutcome: time.Hour, KeepKey: 3 * time.Hour})
	}
	if err != nil {
		l.t.Error(err)
	}
}

// do calls once.Do. It returns the status during the work, if it runs, and
// afterwards.
func (l life) do(op once.Operation[int], returned error) (during, after once.Status) {
	op.Name = l.key.Operation
	_, _ = once.Do(l.t.Context(), l.store, op.For(l.key.ID), func(context.Context, once.Key) (int, error) {
		during = l.status()
		return 1, returned
	})
	return during, l.status()
}

// ask asks about the record, as a reconciler does.
func (l life) ask(op once.Operation[int]) once.Status {
	op.Name = l.key.Operation
	rec, err := l.store.Get(l.t.Context(), l.key)
	if err == nil {
		rec, err = op.Ask(l.t.Context(), l.store, rec)
	}
	if err != nil {
		l.t.Error(err)
	}
	return rec.Status
}

func (l life) decide(decide func(context.Context, once.Record) error) once.Status {
	rec, err := l.store.Get(l.t.Context(), l.key)
	if err = errors.Join(err, decide(l.t.Context(), rec)); err != nil {
		l.t.Error(err)
	}
	return l.status()
}

func answer(happened bool) once.Operation[int] {
	return once.Operation[int]{Lookup: func(context.Context, once.Key) (int, bool, error) { return 1, happened, nil }}
}

var (
	parks   = once.Operation[int]{OnUnknown: once.Park}
	resends = once.Operation[int]{OnUnknown: once.Resend}
	late    = once.Operation[int]{OnUnknown: once.Resend, KeyValidFor: time.Minute}
)

func reopens(l life) once.Status {
	return l.decide(func(ctx context.Context, rec once.Record) error { return store.Reopen(ctx, l.store, rec, "test") })
}

// steps lead a record from one status to another, in every way that the diagram
// names.
var steps = map[[2]once.Status][]func(life) once.Status{
	{once.Absent, once.Running}: {func(l life) once.Status { during, _ := l.do(parks, nil); return during }},
	{once.Absent, once.Done}: {func(l life) once.Status {
		op := once.Operation[int]{Name: l.key.Operation}
		_, err := once.DoTx(l.t.Context(), l.store, op.For(l.key.ID), func(context.Context, *memstore.Tx) (int, error) { return 1, nil })
		if err != nil {
			l.t.Error(err)
		}
		return l.status()
	}},
	{once.Running, once.Done}:    {ends(parks, nil), ends(resends, once.ErrRejected)},
	{once.Running, once.Absent}:  {ends(parks, once.NotDone(nil))},
	{once.Running, once.Parked}:  {ends(parks, errDeclined)},
	{once.Running, once.Unknown}: {ends(resends, errDeclined), passes(time.Minute)},
	{once.Unknown, once.Done}:    {func(l life) once.Status { return l.ask(answer(true)) }},
	{once.Unknown, once.Running}: {
		func(l life) once.Status { during, _ := l.do(answer(false), nil); return during },
		func(l life) once.Status { during, _ := l.do(resends, nil); return during }},
	{once.Unknown, once.Absent}: {func(l life) once.Status { return l.ask(answer(false)) }},
	{once.Unknown, once.Parked}: {
		func(l life) once.Status { return l.ask(parks) },
		func(l life) once.Status { time.Sleep(time.Hour); _, after := l.do(late, nil); return after }},
	{once.Parked, once.Done}: {func(l life) once.Status {
		return l.decide(func(ctx context.Context, rec once.Record) error {
			return once.MarkDone(ctx, l.store, rec, once.Outcome{}, "test")
		})
	}},
	{once.Parked, once.Absent}: {func(l life) once.Status {
		return l.decide(func(ctx context.Context, rec once.Record) error { return once.MarkNotDone(ctx, l.store, rec, "test") })
	}},
	{once.Done, once.Expired}:   {passes(2 * time.Hour)},
	{once.Done, once.Absent}:    {reopens},
	{once.Expired, once.Absent}: {passes(2 * time.Hour), reopens},
}

// ends is a step from a new record with work that returns an error.
func ends(op once.Operation[int], returned error) func(life) once.Status {
	return func(l life) once.Status {
		l.key.ID += "-anew"
		during, after := l.do(op, returned)
		if during != once.Running {
			l.t.Errorf("it is %v while the work runs", during)
		}
		return after
	}
}

func passes(d time.Duration) func(life) once.Status {
	return func(l life) once.Status {
		time.Sleep(d + time.Second)
		return l.status()
	}
}

// TestLifeOfAKey checks that the diagram of docs/concepts.md has exactly the
// steps that exist.
func TestLifeOfAKey(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "concepts.md"))
	if err != nil {
		t.Fatal(err)
	}
	var drawn, tried []string
	for _, m := range regexp.MustCompile(`(?m)^    (\w+) --> (\w+): `).FindAllStringSubmatch(string(text), -1) {
		drawn = append(drawn, m[1]+" to "+m[2])
	}
	for _, step := range slices.Collect(maps.Keys(steps)) {
		tried = append(tried, step[0].String()+" to "+step[1].String())
	}
	slices.Sort(drawn)
	slices.Sort(tried)
	if !slices.Equal(drawn, tried) {
		t.Errorf("drawn: %q\ntried: %q", drawn, tried)
	}
	for step, ways := range steps {
		for _, way := range ways {
			t.Run(step[0].String()+" to "+step[1].String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := life{t, memstore.New(nil), once.Key{Operation: "live", ID: "1"}}
					switch step[0] {
					case once.Absent:
					case once.Expired:
						l.become(once.Done)
						time.Sleep(2 * time.Hour)
					default:
						l.become(step[0])
					}
					if got := l.status(); got != step[0] {
						t.Errorf("it begins as %v, not as %v", got, step[0])
					}
					if got := way(l); got != step[1] {
						t.Errorf("from %v it is led to %v, not to %v", step[0], got, step[1])
					}
				})
			})
		}
	}
}
