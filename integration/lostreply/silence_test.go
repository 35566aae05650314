package lostreply_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/wire"
)

// about matches the requests of a step.
func about(name string) wire.Match {
	return func(r wire.Request) bool {
		return r.Answered() && slices.Contains(strings.Split(step(r), " + "), name)
	}
}

// A holder whose extension was lost extends again before its lease ends. If it met
// with silence, it has an eighth of the lease for that.
func TestLostExtension(t *testing.T) {
	var all sync.WaitGroup // as below
	defer all.Wait()
	for name, action := range map[string]wire.Action{"request lost": wire.DropRequest, "reply lost": wire.SwallowReply,
		"silence": wire.SplitReply} {
		for _, w := range worlds {
			all.Go(func() { t.Run(name+"/"+w.name, func(t *testing.T) { w.make(t).lostExtension(t, action) }) })
		}
	}
}

func (w *world) lostExtension(t *testing.T, action wire.Action) {
	if action == wire.SplitReply {
		w.skipDeaf(t)
	}
	lost := w.proxy.On(about("extend"), action)
	extended := w.proxy.On(about("extend"), wire.DelayReply(0), wire.Skip(1))
	op := &once.Operation[int]{Name: "long", OnUnknown: once.Park, Policy: once.Policy{Lease: 12 * time.Second}}
	id := unique()
	answer, err := once.Do(t.Context(), w.store, op.For(id), func(ctx context.Context, _ once.Key) (int, error) {
		select {
		case <-extended.Done():
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		return 7, w.elsewhere(ctx, id, 7)
	})
	rec, getErr := w.store.Get(t.Context(), op.For(id).Key())
	if answer != 7 || err != nil || getErr != nil || rec.Status != once.Done || rec.Attempt != 1 {
		t.Errorf("%d, %v; the record is %v after attempt %d, %v", answer, err, rec.Status, rec.Attempt, getErr)
	}
	if lost.Hits() != 1 || !slices.Equal(w.effects(t, id), []int{7}) {
		t.Errorf("%d extensions were lost, the effects are %v", lost.Hits(), w.effects(t, id))
	}
}

// The connection stays open and silent. A call with a deadline returns within a
// bound. When a later call succeeds, the effect has happened once.
func TestSilence(t *testing.T) {
	var all sync.WaitGroup // not t.Parallel, which runs few at a time: these tests only wait
	defer all.Wait()
	for _, test := range []struct {
		verb verb
		step string
	}{
		{plain, "claim"}, {plain, "settle"}, {inOneTx, "claim"}, {inOneTx, "effect"}, {inOneTx, "settle"},
		{inOneTx, "commit"}, {inCallersTx, "claim"}, {redelivered, "get"},
	} {
		for name, action := range map[string]wire.Action{"request lost": wire.SplitRequest, "reply lost": wire.SplitReply} {
			for _, w := range worlds {
				if strings.HasPrefix(w.name, "pgstore") && test.verb.name == inOneTx.name && test.step == "settle" {
					continue // it is sent with the commit
				}
				all.Go(func() {
					t.Run(strings.Join([]string{test.verb.name, test.step, name, w.name}, ", "), func(t *testing.T) {
						w.make(t).silence(t, test.verb, test.step, action)
					})
				})
			}
		}
	}
}

const (
	// deadline is that of the caller. On a busy machine, a call may not reach
	// the step in that time. Then the next one has twice as long.
	deadline = 500 * time.Millisecond
	// bound is how much longer a call may take to find out the outcome of work
	// that was done. It waits for a COMMIT or settlement, and then for a look
	// at the record.
	bound = 25 * time.Second
)

// skipDeaf skips lib/pq, which ignores contexts here, as docs/lost-replies.md
// says.
func (w *world) skipDeaf(t *testing.T) {
	t.Helper()
	if w.deaf {
		t.Skip("this driver does not return from a silent connection, whatever its context says")
	}
}

func (w *world) silence(t *testing.T, v verb, step string, action wire.Action) {
	w.skipDeaf(t)
	w.prepare(t, v)
	var rule *wire.Rule
	var id string
	var answer int
	var err error
	var took time.Duration
	for limit := deadline; rule == nil || rule.Hits() == 0 && limit <= bound; limit *= 2 {
		id = w.given(t, v)
		rule = w.proxy.On(about(step), action)
		answer, took, err = w.callWithin(limit, t, v, id)
		rule.Remove()
	}
	if rule.Hits() != 1 || took > bound {
		t.Errorf("%d requests were met with silence, and the call took %v", rule.Hits(), took)
	}
	w.proxy.Cut()
	// A claim whose reply was lost is released in the background. If that comes
	// too late, its lease has to lapse.
	later, cancelLater := context.WithTimeout(t.Context(), lease+patience)
	defer cancelLater()
	if err != nil {
		answer, err = w.untilAnswered(later, t, v, id)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.wantOnce(later, t, v, id, answer)
}

func (w *world) callWithin(limit time.Duration, t *testing.T, v verb, id string) (int, time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	begun := time.Now()
	answer, err := v.call(ctx, t, w, id)
	took := time.Since(begun)
	t.Logf("%v: %d, %v", took.Round(time.Millisecond), answer, err)
	return answer, took, err
}

// Every request takes long to arrive. Duplicates get the same answer.
func TestSlowConnection(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		for _, v := range []verb{plain, inOneTx} {
			w.prepare(t, v)
			slow := w.proxy.On(wire.Any, wire.Delay(20*time.Millisecond), wire.Always)
			id := unique()
			var calls sync.WaitGroup
			answers := make([]int, 8)
			for i := range answers {
				calls.Go(func() {
					var err error
					for answers[i], err = v.call(t.Context(), t, w, id); errors.Is(err, once.ErrInProgress); {
						answers[i], err = v.call(t.Context(), t, w, id)
					}
					if err != nil {
						t.Errorf("%s: %v", v.name, err)
					}
				})
			}
			calls.Wait()
			slow.Remove()
			if slices.Min(answers) != slices.Max(answers) || slow.Hits() == 0 {
				t.Errorf("%s: the answers are %v; %d requests were slow", v.name, answers, slow.Hits())
			}
			w.wantOnce(t.Context(), t, v, id, answers[0])
		}
	})
}
