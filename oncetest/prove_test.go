package oncetest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/oncetest"
	"github.com/effectively-once/once/store/memstore"
)

func TestARightServicePassesQuickly(t *testing.T) {
	c, begun := caseOf(counted(honest)), time.Now()
	ms := messages(5)
	c.Messages, c.Probe = ms, func(ctx context.Context, w *world) (string, error) { return w.probe(ctx, ms) }
	oncetest.Prove(t, c)
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// lying is a store that breaks its contract.
type lying struct {
	*memstore.Store
	commits bool // commits the writes of a body that failed or ended its goroutine
	free    bool // lets each claim win
}

func (l *lying) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	if l.free {
		return l.Store.Transact(ctx, rs, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
			_, err := body(tx, recs)
			if err != nil {
				return nil, err
			}
			return []once.Settlement{{Fence: hold(recs[0]), Status: once.Absent, KeepKey: time.Hour}}, nil
		})
	}
	tx := l.Begin()
	defer tx.Commit()
	recs, err := l.ClaimTx(ctx, tx, rs)
	if err != nil || recs[0].Owner != rs[0].Owner {
		return recs, err
	}
	settled := false
	defer func() {
		if !settled {
			_ = l.SettleTx(context.WithoutCancel(ctx), tx, []once.Settlement{{Fence: hold(recs[0]), Status: once.Absent, KeepKey: time.Hour}})
		}
	}()
	sets, err := body(tx, recs)
	if err != nil {
		return nil, err
	}
	settled = true
	return recs, l.SettleTx(context.WithoutCancel(ctx), tx, sets)
}

func hold(rec once.Record) once.Fence {
	return once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
}

func TestAStoreThatCommitsWhatFailedIsFound(t *testing.T) {
	told := findings(t, caseOf(counted(func(p *oncetest.Process, w *world) once.TxStore[*memstore.Tx] {
		return oncetest.Store(p, once.TxStore[*memstore.Tx](&lying{Store: w.db, commits: true}))
	})))
	expect(t, told, "crash after added of m1", "more than once", "+ m1 2")
	expect(t, told, "crash before commit of m0", "more than once", "+ m0 2")
	for _, text := range told {
		if strings.Contains(text, "crash after commit") || strings.Contains(text, "crash before begin") {
			t.Error("this window is not broken:\n" + text)
		}
	}
}

func TestAStoreThatRemembersNothingIsFound(t *testing.T) {
	told := findings(t, caseOf(counted(func(p *oncetest.Process, w *world) once.TxStore[*memstore.Tx] {
		return oncetest.Store(p, once.TxStore[*memstore.Tx](&lying{Store: w.db, free: true}))
	})))
	for _, window := range []string{"twice in a row", "again after everything", "again from dead letters", "lost acks",
		"64 at once", "twice in reverse order", "sent again with a later time", "broken session", "crash after commit of m2", "crash before ack of m2", "storm"} {
		expect(t, told, window, "more than once")
	}
}

func TestWorkThatDependsOnTheOrderOfUnrelatedKeysIsFound(t *testing.T) {
	op := &once.Operation[struct{}]{Name: "count"}
	c := caseOf(func(ctx context.Context, p *oncetest.Process, w *world) error {
		s := honest(p, w)
		return loop(ctx, p, func(m *broker.Message) error {
			_, err := once.DoTx(ctx, s, op.For(m.ID), func(_ context.Context, tx *memstore.Tx) (none struct{}, err error) {
				tx.Set("last", m.ID)
				return none, nil
			})
			return err
		})
	})
	c.Probe = func(_ context.Context, w *world) (string, error) {
		last, _ := w.db.Value("last")
		return "the last was " + last, nil
	}
	c.Messages, c.Crashes = c.Messages[:2], 1
	expect(t, findings(t, c), "twice in reverse order", "the same ordering key")
}

func TestACrowdHasTwoProcesses(t *testing.T) {
	var crowded *world
	c := caseOf(func(ctx context.Context, p *oncetest.Process, w *world) error {
		w.mu.Lock()
		w.lives[p] = true
		w.mu.Unlock()
		return counted(honest)(ctx, p, w)
	})
	c.Crashes = 1
	c.Setup = func(t testing.TB) *world {
		w := newWorld(t)
		if strings.HasSuffix(t.Name(), "/64_at_once") {
			crowded = w
		}
		return w
	}
	oncetest.Prove(t, c)
	if crowded == nil || len(crowded.lives) != 2 {
		t.Error("there were not two processes")
	}
}

func TestAKeyThatIsTooCoarseIsFound(t *testing.T) {
	op := &once.Operation[struct{}]{Name: "count"}
	c := caseOf(func(ctx context.Context, p *oncetest.Process, w *world) error {
		s := honest(p, w)
		return loop(ctx, p, func(m *broker.Message) error {
			_, err := once.DoTx(ctx, s, op.For(m.OrderingKey), func(_ context.Context, tx *memstore.Tx) (none struct{}, err error) {
				add(tx, m.ID)
				return none, nil
			})
			return err
		})
	})
	c.Crashes = 1
	expect(t, findings(t, c), "alone m2", "taken for a duplicate", "too coarse")
	c.Work = func(m *broker.Message) string { return m.OrderingKey }
	for _, text := range findings(t, c) {
		if strings.Contains(text, "was taken for a duplicate") {
			t.Error("the case has said that the two mean the same:\n" + text)
		}
	}
}

func TestServicesThatStop(t *testing.T) {
	right, hurry := counted(honest), 500*time.Millisecond
	for name, test := range map[string]struct {
		run  run
		want string
	}{
		"with an error": {func(context.Context, *oncetest.Process, *world) error { return errors.New("no network") }, "no network"},
		"without one":   {func(context.Context, *oncetest.Process, *world) error { return nil }, "Run returned before"},
		"at an error of the broker": {func(ctx context.Context, p *oncetest.Process, w *world) error {
			session, err := p.Source().Open(ctx, 1)
			for err == nil {
				var ds []broker.Delivery
				if ds, err = session.Receive(ctx, 1); err == nil {
					tx := w.db.Begin()
					tx.Set(ds[0].Message.ID, "1")
					err = errors.Join(tx.Commit(), session.Ack(ctx, ds))
				}
			}
			return err
		}, "broken session: Run returned before"},
		"never": {func(ctx context.Context, p *oncetest.Process, w *world) error {
			_ = right(ctx, p, w)
			<-w.over
			return nil
		}, "Run did not return"},
		"before they begin": {func(ctx context.Context, _ *oncetest.Process, _ *world) error {
			<-ctx.Done()
			return nil
		}, "Run did nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := caseOf(test.run)
			c.Deadline, c.Crashes = hurry, 1
			expect(t, findings(t, c), test.want)
		})
	}
}

func TestAMessageThatIsNeverAcknowledgedIsFound(t *testing.T) {
	c := caseOf(func(ctx context.Context, p *oncetest.Process, w *world) error {
		seen := make(map[string]bool)
		return loop(ctx, p, func(m *broker.Message) error {
			if seen[m.ID] {
				<-ctx.Done() // duplicates are not acknowledged
				return ctx.Err()
			}
			seen[m.ID] = true
			tx := w.db.Begin()
			tx.Set(m.ID, "1")
			return tx.Commit()
		})
	})
	c.Deadline, c.Crashes = 400*time.Millisecond, 1
	expect(t, findings(t, c), "twice in a row", "not all messages were acknowledged", "1 of 2 deliveries", "Acknowledge duplicates")
}

func TestProbesThatProveNothing(t *testing.T) {
	c := caseOf(counted(honest))
	c.Probe = func(context.Context, *world) (string, error) { return "all is well", nil }
	expect(t, findings(t, c), "Probe shows no effect")
	c.Probe = func(_ context.Context, w *world) (string, error) {
		_, done := w.db.Value("m2")
		return fmt.Sprintf("%v %p", done, w), nil
	}
	expect(t, findings(t, c), "two undisturbed runs differs", "Omit that")
	c.Probe = func(context.Context, *world) (string, error) { return "", errors.New("no such table") }
	expect(t, findings(t, c), "no such table")
}

func TestCasesThatAreNotOne(t *testing.T) {
	good := caseOf(counted(honest))
	for want, change := range map[string]func(*oncetest.Case[*world]){
		"needs Setup, Run and Probe": func(c *oncetest.Case[*world]) { c.Probe = nil },
		"no Messages":                func(c *oncetest.Case[*world]) { c.Messages = nil },
		"is nil":                     func(c *oncetest.Case[*world]) { c.Messages = append(messages(1), nil) },
		"have the ID \"m0\"":         func(c *oncetest.Case[*world]) { c.Messages = append(messages(1), messages(1)...) },
		"a message needs an ID":      func(c *oncetest.Case[*world]) { c.Messages = []*broker.Message{{}} },
		"negative":                   func(c *oncetest.Case[*world]) { c.Deadline = -1 },
	} {
		c := good
		change(&c)
		expect(t, findings(t, c), want)
	}
	t.Setenv("ONCETEST_SEED", "seven")
	expect(t, findings(t, good), "ONCETEST_SEED")
}

// bank is a system that honours idempotency keys.
type bank struct {
	w     *world
	known map[string]bool
}

func (b *bank) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.Header.Get("Idempotency-Key")
	if key == "" || !b.known[key] {
		b.w.send("charged")
		b.known[key] = true
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// charging is a service that calls another system, and sends a request again if
// its outcome is unknown.
func charging(keyOf func(once.Key) string) run {
	op := &once.Operation[struct{}]{Name: "charge", OnUnknown: once.Resend}
	var mu sync.Mutex
	banks := make(map[*world]*bank)
	return func(ctx context.Context, p *oncetest.Process, w *world) error {
		mu.Lock()
		if banks[w] == nil {
			banks[w] = &bank{w, make(map[string]bool)}
		}
		client, s := http.Client{Transport: p.Transport(banks[w])}, oncetest.Plain(p, w.db)
		mu.Unlock()
		return loop(ctx, p, func(m *broker.Message) error {
			_, err := once.Do(ctx, s, op.For(m.ID), func(ctx context.Context, key once.Key) (none struct{}, err error) {
				r, err := http.NewRequestWithContext(ctx, "POST", "http://bank/charges", nil)
				if err != nil {
					return none, err
				}
				if sent := keyOf(key); sent != "" {
					r.Header.Set("Idempotency-Key", sent)
				}
				answer, err := client.Do(r)
				if err != nil {
					return none, err
				}
				return none, answer.Body.Close()
			})
			return err
		})
	}
}

func TestRequestsWithAKeyAndWithout(t *testing.T) {
	prove(t, caseOf(charging(once.Key.String)))
	told := findings(t, caseOf(charging(func(once.Key) string { return "" })))
	expect(t, told, "crash after POST /charges of m0", "more than once", "(the next step would have been settle)", "send the key ")
	expect(t, told, "lost reply after POST /charges of m0", "more than once")
}

// Parked work is right if the case accepts it. Leases of crashed processes end
// at once.
func TestAtMostOnce(t *testing.T) {
	op := &once.Operation[struct{}]{Name: "mail", OnUnknown: once.Park}
	c := caseOf(func(ctx context.Context, p *oncetest.Process, w *world) error {
		s := oncetest.Plain(p, w.db)
		return loop(ctx, p, func(m *broker.Message) error {
			_, err := once.Do(ctx, s, op.For(m.ID), func(context.Context, once.Key) (none struct{}, err error) {
				p.Step("about to send")
				w.send("mail " + m.ID)
				p.Step("sent")
				return none, nil
			})
			if errors.Is(err, once.ErrParked) {
				return nil
			}
			return err
		})
	})
	c.Crashes = 40
	expect(t, findings(t, c), "crash before about to send of m1", "work was lost", "Case.Accept")
	c.Accept = func(reference, state string) bool {
		return strings.Count(state, "mail") == strings.Count(reference, "mail")-1
	}
	c.Messages = c.Messages[:1] // so that a storm does not park more
	prove(t, c)
}

func TestTheSameWorkUnderAnotherID(t *testing.T) {
	c := caseOf(counted(honest))
	for _, m := range c.Messages {
		m.Body = []byte(m.ID)
	}
	c.Probe = func(_ context.Context, w *world) (string, error) {
		n := 0
		for _, id := range []string{"m0", "m1", "m2", "m0-sent-again", "m1-sent-again", "m2-sent-again"} {
			if _, found := w.db.Value(id); found {
				n++
			}
		}
		return fmt.Sprint(n, " done"), nil
	}
	c.Crashes = 1
	prove(t, c) // without Input, bodies do not matter
	c.Work = func(m *broker.Message) string { return string(m.Body) }
	expect(t, findings(t, c), "sent again with another ID", "more than once", "inbox.Consumer.Key")
}

func TestKeysThatAreForgottenTooEarly(t *testing.T) {
	op := &once.Operation[struct{}]{Name: "count", Policy: once.Policy{KeepOutcome: time.Nanosecond, KeepKey: 300 * time.Millisecond}}
	c := caseOf(func(ctx context.Context, p *oncetest.Process, w *world) error {
		s := honest(p, w)
		return loop(ctx, p, func(m *broker.Message) error {
			_, err := once.DoTx(ctx, s, op.For(m.ID), func(_ context.Context, tx *memstore.Tx) (none struct{}, err error) {
				add(tx, m.ID)
				return none, nil
			})
			if errors.Is(err, once.ErrExpired) {
				return nil
			}
			return err
		})
	})
	c.Crashes = 1
	c.Forget = func(ctx context.Context, w *world) error {
		key := once.Key{Operation: "count", ID: "m2"} // the last message
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			if rec, err := w.db.Get(ctx, key); err != nil || rec.Status == once.Absent {
				return err
			}
			<-tick.C
		}
	}
	expect(t, findings(t, c), "again after retention", "more than once", "park older messages")
}
