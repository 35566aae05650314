package lostreply_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/wire"
)

// fault is a fault that can happen to a request.
type fault struct {
	name   string
	action wire.Action
	cut    bool // the connection is cut after the silence
}

// faults returns four faults in a normal run, and all of them in a soak.
func faults() []fault {
	all := []fault{
		{"request lost", wire.DropRequest, false},
		{"reply lost", wire.SwallowReply, false},
		{"last byte of the reply lost", wire.CutReply(-1), false},
		{"reply lost, silence, then cut", wire.SplitReply, true},
		{"request lost, silence, then cut", wire.SplitRequest, true},
		{"reply lost but for its first byte", wire.CutReply(1), false},
	}
	if os.Getenv("ONCE_SOAK") == "" {
		return all[:4]
	}
	return all
}

// For each store and verb, each request that the verb sends is lost in each of
// the ways. The effect happens once, and all calls get its answer.
func TestEveryRequest(t *testing.T) {
	onEach(t, func(t *testing.T, w *world) {
		lost := map[string]int{}
		for _, v := range verbs {
			steps := w.steps(t, v)
			for i, step := range steps {
				for _, f := range faults() {
					name := fmt.Sprintf("%s, request %d of %d (%s), %s", v.name, i+1, len(steps), step, f.name)
					hit := t.Run(name, func(t *testing.T) { w.lose(t, v, i, step, f.action, f.cut) })
					if hit {
						lost[step]++
					}
				}
			}
		}
		t.Logf("lost: %v", lost)
		for _, must := range []string{"claim", "settle", "commit", "get", "effect"} {
			if !slices.ContainsFunc(keys(lost), func(step string) bool { return strings.Contains(step, must) }) {
				t.Errorf("no request with a %s was lost", must)
			}
		}
	})
}

func keys(m map[string]int) (all []string) {
	for key := range m {
		all = append(all, key)
	}
	return all
}

// steps returns the requests that a verb sends on a connection that has sent
// them before.
func (w *world) steps(t *testing.T, v verb) (steps []string) {
	t.Helper()
	for range 3 { // sqlstore prepares a statement when it is sent for the second time
		w.prepare(t, v)
	}
	id := w.given(t, v)
	var mu sync.Mutex
	rule := w.proxy.On(func(r wire.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.Answered() {
			steps = append(steps, step(r))
		}
		return false
	}, wire.Pass)
	_, err := v.call(t.Context(), t, w, id)
	rule.Remove()
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(steps)
}

// prepare brings the connections into the state from which steps counts.
func (w *world) prepare(t *testing.T, v verb) {
	t.Helper()
	if _, err := v.call(t.Context(), t, w, w.given(t, v)); err != nil {
		t.Fatal(err)
	}
}

// given returns the ID of a unit of work. It is done already if the verb is a
// redelivery.
func (w *world) given(t *testing.T, v verb) string {
	t.Helper()
	id := unique()
	if v.again {
		if _, err := do(t.Context(), t, w, id); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

// step names the purpose of a request.
func step(r wire.Request) string {
	var all []string
	for _, m := range r.Messages {
		name := part(unquoted.Replace(strings.ToLower(m.Text)))
		if m.Kind == "Parse" || m.Kind == "Prepare" {
			name = "prepare " + name
		}
		if m.Kind != "Bind" && m.Kind != "Describe" && m.Kind != "Sync" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return strings.Join(all, " + ")
}

// unquoted removes quotes of names and line breaks.
var unquoted = strings.NewReplacer("`", "", `"`, "", "\n", " ", "\t", "")

func part(text string) string {
	is := func(parts ...string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	}
	switch {
	case is("insert into effect"):
		return "effect"
	case is("once_record", "insert into"), is("once_record", "advisory"):
		return "claim"
	case is("update once_record set lease_until"):
		return "extend"
	case is("update once_record"):
		return "settle"
	case is("once_record"):
		return "get"
	default:
		return text
	}
}

// lose loses the request with this number, and continues as a caller would.
func (w *world) lose(t *testing.T, v verb, number int, step string, action wire.Action, cut bool) {
	w.prepare(t, v)
	id := w.given(t, v)
	if w.renew != nil {
		w.renew()
		_, _ = w.store.Get(t.Context(), once.Key{Operation: "ready", ID: "1"}) // a new store first checks its tables
	}
	asked := w.asked.Load()
	rule := w.proxy.On(wire.Request.Answered, action, wire.Skip(number))
	defer rule.Remove()
	if cut {
		go w.cutAfter(rule)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	begun := time.Now()
	answer, err := v.call(ctx, t, w, id)
	if rule.Hits() != 1 {
		t.Fatalf("nothing was lost; the call returned %d, %v", answer, err)
	}
	if err != nil && (w.mustAnswer(v, step) || errors.Is(err, once.ErrInProgress)) {
		t.Errorf("the first call returned %v", err)
	}
	if err != nil {
		answer, err = w.untilAnswered(ctx, t, v, id)
	}
	if err != nil {
		t.Fatalf("after %v: %v", time.Since(begun), err)
	}
	if took := time.Since(begun); took > patience {
		t.Errorf("the answer took %v", took)
	}
	w.wantOnce(ctx, t, v, id, answer)
	if n := w.asked.Load() - asked; n > 0 {
		t.Errorf("Lookup was asked %d times, although no lease lapsed", n)
	}
	if rec, err := w.around.Get(ctx, w.operation(t).For(id).Key()); err != nil || rec.Attempt != 1 {
		t.Errorf("attempt %d, %v: the claim was not recognised as one's own", rec.Attempt, err)
	}
}

// patience is much longer than a retry takes, and much shorter than a lease.
const patience = 15 * time.Second

// untilAnswered repeats a call while once.MayRetry says so.
func (w *world) untilAnswered(ctx context.Context, t *testing.T, v verb, id string) (int, error) {
	for {
		answer, err := v.call(ctx, t, w, id)
		if _, again := once.MayRetry(err); !again || ctx.Err() != nil {
			return answer, err
		}
	}
}

// mustAnswer reports whether the same call must return the answer. It need not if the
// caller's own statement or commit was lost, or a settlement in a transaction that is
// then certainly rolled back.
func (w *world) mustAnswer(v verb, step string) bool {
	inTx := v.name != "Do" && !v.again
	rolledBack := strings.Contains(step, "settle") && !strings.Contains(step, "commit")
	return v.name != "InTx" && !strings.Contains(step, "effect") && !(inTx && rolledBack)
}

// cutAfter cuts the connections some time after they have become silent.
func (w *world) cutAfter(rule *wire.Rule) {
	<-rule.Done()
	timer := time.NewTimer(30 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	w.proxy.Cut()
}

// wantOnce checks that the effect happened once, that the record is done, and that every
// later call gets the answer of the run that had the effect.
func (w *world) wantOnce(ctx context.Context, t *testing.T, v verb, id string, answer int) {
	t.Helper()
	effects := w.effects(t, id)
	if v.name != "DoTx without a statement" && !slices.Equal(effects, []int{answer}) {
		t.Errorf("the effects are those of the runs %v, the answer is %d", effects, answer)
	}
	if rec, err := w.around.Get(ctx, w.operation(t).For(id).Key()); err != nil || rec.Status != once.Done {
		t.Errorf("the record is %v: %v", rec.Status, err)
	}
	if later, err := w.untilAnswered(ctx, t, v, id); later != answer || err != nil {
		t.Errorf("a later call got %d, %v; the first answer was %d", later, err, answer)
	}
}
