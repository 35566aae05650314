package history

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
)

// mutation makes a right history wrong at one place. It reports whether it
// applies there.
type mutation func(events []event, at int) bool

// mutations are replies of stores that break the contract. Each is wrong
// wherever it applies, because the history is that of one client, which makes
// one call after another.
var mutations = map[string]mutation{
	"two owners": func(events []event, at int) bool {
		e := &events[at]
		lost := (e.verb == claim || e.verb == transact) && e.rec.Status == once.Running && e.rec.Owner != e.req.Owner
		e.rec.Owner, e.rec.Attempt, e.rec.Fingerprint = e.req.Owner, e.rec.Attempt+1, e.req.Fingerprint
		return lost
	},
	"a claim that won the same attempt": func(events []event, at int) bool {
		e := &events[at]
		won := e.verb == claim && e.rec.Status == once.Running && e.rec.Owner == e.req.Owner && e.rec.Attempt > 1
		e.rec.Attempt--
		return won
	},
	"the attempt goes back": func(events []event, at int) bool {
		e := &events[at]
		e.rec.Attempt--
		return e.verb == get && e.rec.Attempt > 0
	},
	"a settlement is lost": func(events []event, at int) bool {
		e := &events[at]
		settled := at > 0 && e.verb == get && e.rec.Status == once.Done
		e.rec.Status, e.rec.Outcome, e.rec.LeaseLeft = once.Running, once.Outcome{}, time.Hour-time.Millisecond
		return settled
	},
	"a stale settlement is accepted": func(events []event, at int) bool {
		e := &events[at]
		stale := e.verb == settle && e.result == refused
		e.result = answered
		return stale
	},
	"a stale extension is accepted": func(events []event, at int) bool {
		e := &events[at]
		stale := e.verb == extend && e.result == refused
		e.result = answered
		return stale
	},
	"a current settlement is refused": func(events []event, at int) bool {
		e := &events[at]
		current := e.verb == settle && e.result == answered
		e.result = refused
		return current && !slices.ContainsFunc(events[:at], mayLinger)
	},
	"another outcome is replayed": func(events []event, at int) bool {
		e := &events[at]
		done := e.rec.Status == once.Done
		e.rec.Outcome.Body = []byte("somebody else's")
		return done
	},
	"a lease lapses too early": func(events []event, at int) bool {
		e := &events[at]
		running := e.verb == get && e.rec.Status == once.Running && e.rec.LeaseLeft > time.Minute
		e.rec.Status, e.rec.LeaseLeft = once.Unknown, -time.Second
		return running
	},
	"a lease lasts too long": func(events []event, at int) bool {
		e := &events[at]
		running := e.rec.Status == once.Running && e.rec.LeaseLeft > 0
		e.rec.LeaseLeft += time.Second + 2*e.blur
		return running && (e.verb == claim || e.verb == get)
	},
	"the input is another one": func(events []event, at int) bool {
		e := &events[at]
		known := len(e.rec.Fingerprint) > 0
		e.rec.Fingerprint = []byte("of another")
		return known
	},
	"a key is forgotten too early": func(events []event, at int) bool {
		e := &events[at]
		kept := e.verb == get && (e.rec.Status == once.Parked || e.rec.Status == once.Running || e.rec.Status == once.Unknown)
		e.rec = once.Record{}
		return kept
	},
	seenRolledBack: func(events []event, at int) bool {
		e := &events[at]
		ours := e.verb == transact && e.result == answered && e.undone && e.rec.Owner == e.req.Owner &&
			at+1 < len(events) && events[at+1].verb == get && events[at+1].rec.Owner != e.rec.Owner
		events[min(at+1, len(events)-1)].rec = e.rec
		return ours
	},
	"a late claim takes what its owner released": func(events []event, at int) bool {
		e := &events[at]
		late := e.verb == claim && e.rec.Status == once.Absent && e.rec.Attempt > 0
		e.rec.Status, e.rec.Owner, e.rec.LeaseLeft = once.Running, e.req.Owner, e.req.Lease
		e.rec.Attempt++
		return late
	},
}

// mayLinger reports whether the claim of a transaction may be seen after the
// transaction has failed. It rightly refuses the settlements of other claims.
func mayLinger(e event) bool { return e.firm && e.result != answered && e.entry.at > 0 }

const seenRolledBack = "a transaction that was rolled back is seen"

// TestWrongHistoriesAreRejected checks that each mutation is found at each
// place, in histories of each kind of store that needs no server.
func TestWrongHistoriesAreRejected(t *testing.T) {
	seed := proof.Seed(t)
	onEach(t, func(t *testing.T, p *place) {
		is, err := p.process(t.Context(), false)
		proof.Must(t, err)
		c := &client{chance: rand.New(rand.NewPCG(seed, 0)), process: is, patient: true}
		applicable := maps.Clone(mutations)
		if is.txs == nil {
			delete(applicable, seenRolledBack)
		}
		found := make(map[string]int)
		const rounds, keys = 10, 6 // usually one round has places for all
		for round := 0; round < rounds && len(found) < len(applicable); round++ {
			c.recorder = newRecorder()
			for i := range keys {
				c.keys = []once.Key{{Operation: "mutation", ID: fmt.Sprint(round, "-", i)}}
				if err := c.tellTale(t.Context(), c.keys[0]); err != nil {
					t.Fatalf("%s=%d: %v", proof.SeedVar, seed, err)
				}
			}
			for _, events := range c.recorder.events {
				if err := check(events); err != nil {
					t.Fatalf("%s=%d: the history itself is rejected: %v", proof.SeedVar, seed, err)
				}
				for name, mutate := range applicable {
					if n := rejectedPlaces(t, events, name, mutate, seed); n > 0 {
						found[name] += n
					}
				}
			}
		}
		for name := range applicable {
			t.Logf("%s: at %d places", name, found[name])
			if found[name] == 0 {
				t.Errorf("%s=%d: no history has a place for: %s", proof.SeedVar, seed, name)
			}
		}
	}, engine.SQLite, "natsstore", "dynamostore", "cosmosstore")
}

// rejectedPlaces applies a mutation at each place of a history, and returns how
// many there are. Each must be rejected.
func rejectedPlaces(t *testing.T, events []event, name string, mutate mutation, seed uint64) (places int) {
	t.Helper()
	for at := range events {
		wrong := slices.Clone(events)
		if events[at].result == failed || !mutate(wrong, at) {
			continue
		}
		places++
		switch err := check(wrong[:min(at+2, len(wrong))]); {
		case err == nil:
			t.Errorf("%s=%d: %s, and the check accepts it: %v -> %v", proof.SeedVar, seed, name, wrong[at].call, wrong[at].reply)
		case errors.Is(err, errUndecided):
			t.Errorf("%s=%d: %s: %v", proof.SeedVar, seed, name, err)
		}
	}
	return places
}

func TestAViolationEndsWithTheCallThatBreaksTheContract(t *testing.T) {
	is, err := kinds()[engine.SQLite](t).process(t.Context(), false)
	proof.Must(t, err)
	k := once.Key{Operation: "violation", ID: "1"}
	c := &client{recorder: newRecorder(), process: is, chance: rand.New(rand.NewPCG(1, 1)), patient: true, keys: []once.Key{k}}
	proof.Must(t, c.tellTale(t.Context(), k))
	events := c.events[k]
	at := slices.IndexFunc(events, func(e event) bool { return e.verb == get && e.rec.Attempt > 0 })
	events[at].rec.Attempt += 7
	err = check(events)
	if want := described(events[at].operation()); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("the report is %v\nwant it to end with %s", err, want)
	}
}

// tellTale makes a history that begins with rare calls and has many reads.
func (c *client) tellTale(ctx context.Context, k once.Key) error {
	r := once.ClaimRequest{Fence: once.Fence{Key: k, Owner: c.token()}, Lease: time.Hour, Fingerprint: []byte("input")}
	fence := r.Fence
	fence.Attempt = 1
	err := errors.Join(c.claimAs(ctx, r), c.settleAs(ctx, fence, ending{status: once.Absent, keepKey: time.Hour}), c.claimAs(ctx, r),
		c.claimAndRollBack(ctx, k), c.get(ctx, k))
	for range 24 {
		err = errors.Join(err, c.step(ctx))
		if c.chance.IntN(2) == 0 {
			err = errors.Join(err, c.get(ctx, k))
		}
	}
	return err
}

func (c *client) claimAndRollBack(ctx context.Context, k once.Key) error {
	if c.txs == nil {
		return nil
	}
	r := once.ClaimRequest{Fence: once.Fence{Key: k, Owner: c.token()}, Lease: time.Hour}
	return c.record(k, call{verb: transact, how: "ClaimTx", req: r, undone: true}, func() (rec once.Record, err error) {
		return rec, c.inTx(ctx, true, func(in tx) error {
			rec, err = only(c.txs.ClaimTx(ctx, in, []once.ClaimRequest{r}))
			return err
		})
	})
}
