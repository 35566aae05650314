package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// A message is handled if its effect happened but its value could not be
// stored.
func TestADoneEffectIsNotParked(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := &inbox.Consumer{Name: "mail", Source: b.broker.Queue("orders"), Retry: retryAtOnce(4), Stats: new(inbox.Stats),
			Handler: inbox.Do(b.store, &once.Operation[float64]{OnUnknown: once.Park},
				func(context.Context, once.Key, *broker.Message) (float64, error) { return math.NaN(), nil })}
		start(t, c)
		b.publish("orders", ordered("m0", "k"))
		await(t, "m0", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load() > 0 })
		rec, err := b.store.Get(t.Context(), once.Key{Operation: "mail", ID: "m0"})
		if err != nil || rec.Status != once.Done {
			t.Fatal(rec, err)
		}
		if found := b.onTheShelf(store.Parked); len(found) > 0 {
			t.Error("its key is Done, and it is parked:", found[0].Reason)
		}
	})
}

// A message whose key another process has is not parked, however many attempts
// it has.
func TestARunningAttemptIsLeftAlone(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		key := once.Key{Operation: "mail", ID: "m0"}
		r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Millisecond}
		if _, err := b.store.Claim(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		await(t, "the lease lapses", func() bool {
			rec, err := b.store.Get(t.Context(), key)
			return err == nil && rec.Status == once.Unknown
		})
		r = once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{2}, Attempt: 1}, Lease: time.Minute}
		if rec, err := b.store.Claim(t.Context(), r); err != nil || rec.Status != once.Running {
			t.Fatal(rec, err)
		}
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Resend}, func(context.Context, once.Key, *broker.Message) (string, error) {
			return "sent", nil
		})
		c.Retry = retryAtOnce(1)
		var came atomic.Int64
		c.Source = bent{Source: c.Source, arrive: func(d *broker.Delivery) { came.Add(1); d.Redelivered, d.Message.Attempt = true, 2 }}
		start(t, c)
		b.publish("orders", ordered("m0", "k"), message("m1"))
		await(t, "m1", func() bool { return c.Stats.Handled.Load() > 0 })
		if rec, err := b.store.Get(t.Context(), key); err != nil || rec.Status != once.Running {
			t.Errorf("another process is at work on it, and its key is %v, its message parked: %d (%v)", rec.Status, c.Stats.Parked.Load(), err)
		}
	})
}

func doConsumer(b *bench, op *once.Operation[string], h func(context.Context, once.Key, *broker.Message) (string, error)) *inbox.Consumer {
	return &inbox.Consumer{Name: "mail", Source: b.broker.Queue("orders"), Handler: inbox.Do(b.store, op, h), Retry: retryAtOnce(4),
		Stats: new(inbox.Stats)}
}

func TestAnEffectOnceAcrossFaultsOfTheBroker(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(_ context.Context, key once.Key, m *broker.Message) (string, error) {
			b.called(m)
			return key.String(), nil
		})
		b.broker.Duplicate(20)
		b.broker.LoseAcks(20)
		start(t, c)
		for i, m := range numbered(60) {
			b.publish("orders", m)
			if i%20 == 19 {
				b.broker.Restart()
			}
		}
		await(t, "60 handled", func() bool { return c.Stats.Handled.Load() == 60 })
		b.broker.Restart()
		b.publish("orders", message("last"))
		await(t, "the last", func() bool { return c.Stats.Handled.Load() == 61 })
		b.mu.Lock()
		defer b.mu.Unlock()
		for id, n := range b.calls {
			if n != 1 {
				t.Errorf("%s: %d calls", id, n)
			}
		}
	})
}

func TestAnUnknownEffectIsParkedAndReplayedOnlyOnAPersonsWord(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var calls atomic.Int64
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
			if calls.Add(1) == 1 {
				return "", errors.New("connection reset")
			}
			return "sent", nil
		})
		start(t, c)
		b.publish("orders", ordered("m0", "k"), ordered("m1", "k"))
		await(t, "one is parked, and one waits for it", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Shelved.Load() == 1 })
		admin := inbox.Admin{Store: b.store}
		found, err := admin.List(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Parked}})
		if err != nil || len(found) != 1 || !strings.HasPrefix(found[0].Reason, "unknown outcome: ") {
			t.Fatal(found, err)
		}
		decision := inbox.Decision{By: "me", Reason: "looked at the mail server"}
		if got, err := admin.Replay(t.Context(), store.ShelfQuery{}, decision); err != nil || got != (inbox.Tally{Matched: 1, Unknown: 1}) {
			t.Error(got, err)
		}
		decision.NotDone = true
		if got, err := admin.Replay(t.Context(), store.ShelfQuery{}, decision); err != nil || got != (inbox.Tally{Matched: 1, Changed: 1, Ordered: 1}) {
			t.Error(got, err)
		}
		await(t, "both", func() bool { return c.Stats.Handled.Load() == 2 })
		if calls.Load() != 3 {
			t.Errorf("%d calls", calls.Load())
		}
		found, err = admin.List(t.Context(), store.ShelfQuery{})
		if err != nil || len(found) != 1 || found[0].State != store.Handled {
			t.Error("what was done about it is not kept:", found, err)
		}
	})
}

// If the key of a message is resolved, its replay needs no NotDone.
func TestAMessageIsReplayedOnceItsKeyIsDecided(t *testing.T) {
	t.Parallel()
	for _, happened := range []bool{true, false} {
		t.Run(map[bool]string{true: "happened", false: "not happened"}[happened], func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				var calls atomic.Int64
				c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
					if calls.Add(1) == 1 {
						return "", errors.New("connection reset")
					}
					return "sent", nil
				})
				start(t, c)
				b.publish("orders", ordered("m0", "k"), ordered("m1", "k"))
				await(t, "one is parked, and one waits for it", func() bool { return c.Stats.Parked.Load() == 1 && c.Stats.Shelved.Load() == 1 })
				admin, decision := inbox.Admin{Store: b.store}, inbox.Decision{By: "me", Reason: "looked at the mail server"}
				if got, err := admin.Replay(t.Context(), store.ShelfQuery{}, decision); err != nil || got != (inbox.Tally{Matched: 1, Unknown: 1}) {
					t.Fatal("before anybody has decided:", got, err)
				}
				rec, err := b.store.Get(t.Context(), once.Key{Operation: "mail", ID: "m0"})
				if err != nil {
					t.Fatal(err)
				}
				want := int64(3) // m0 again, and m1
				if happened {
					want, err = 2, once.MarkDone(t.Context(), b.store, rec, once.Outcome{ContentType: "application/json", Body: []byte(`"sent"`)}, "seen")
				} else {
					err = once.MarkNotDone(t.Context(), b.store, rec, "not seen")
				}
				if err != nil {
					t.Fatal(err)
				}
				if got, err := admin.Replay(t.Context(), store.ShelfQuery{}, decision); err != nil || got != (inbox.Tally{Matched: 1, Changed: 1, Ordered: 1}) {
					t.Fatal("after that:", got, err)
				}
				await(t, "both", func() bool {
					found, err := admin.List(t.Context(), store.ShelfQuery{States: []store.ShelfState{store.Parked, store.Waiting}})
					return err == nil && len(found) == 0
				})
				if calls.Load() != want {
					t.Errorf("%d calls, not %d", calls.Load(), want)
				}
				rec, err = b.store.Get(t.Context(), rec.Key)
				if err != nil || rec.Status != once.Done || rec.Outcome.Rejected || string(rec.Outcome.Body) != `"sent"` {
					t.Errorf("the key: %v %+v %v", rec.Status, rec.Outcome, err)
				}
				found, err := admin.List(t.Context(), store.ShelfQuery{})
				if err != nil || len(found) != 1 || strings.Contains(found[0].History, "did not happen") {
					t.Error("words that nobody has said:", found, err)
				}
			})
		})
	}
}

// reparked is a store that parks a key again as soon as its message was
// changed.
type reparked struct {
	inbox.AdminStore
	key once.Key
}

func (s reparked) Change(ctx context.Context, m store.Shelved) error {
	if err := s.AdminStore.Change(ctx, m); err != nil {
		return err
	}
	rec, err := s.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: s.key, Owner: [16]byte{1}}, Lease: time.Minute})
	if err != nil {
		return err
	}
	return s.Settle(ctx, once.Settlement{Fence: once.Fence{Key: s.key, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Parked})
}

// A key whose outcome becomes unknown again during a replay is not released by
// it.
func TestAReplayLeavesAKeyThatWasDecidedAbout(t *testing.T) {
	b, key := newBench(t), once.Key{Operation: "mail", ID: "m0"}
	m := store.Shelved{Consumer: key.Operation, Message: *message(key.ID), Key: key.ID, State: store.Parked, Reason: "unknown outcome: cut off"}
	if err := b.store.Shelve(t.Context(), []store.Shelved{m}); err != nil {
		t.Fatal(err)
	}
	admin := inbox.Admin{Store: reparked{b.store, key}}
	got, err := admin.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "it is free"})
	if err != nil || got != (inbox.Tally{Matched: 1, Changed: 1}) {
		t.Fatal(got, err)
	}
	if rec, err := b.store.Get(t.Context(), key); err != nil || rec.Status != once.Parked {
		t.Error("the key is", rec.Status, err)
	}
}

func TestNotDoneIsTriedAgain(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var calls atomic.Int64
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
			if calls.Add(1) < 3 {
				return "", once.NotDone(errors.New("refused"))
			}
			return "sent", nil
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
		if calls.Load() != 3 || c.Stats.Failed.Load() != 2 {
			t.Error(calls.Load(), c.Stats.Failed.Load())
		}
	})
}

func TestNotDoneEndsAtTheLastAttempt(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var calls atomic.Int64
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
			calls.Add(1)
			return "", once.NotDone(errors.New("refused"))
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		if calls.Load() != 4 {
			t.Errorf("%d calls, 4 are allowed", calls.Load())
		}
		got, err := inbox.Admin{Store: b.store}.Replay(t.Context(), store.ShelfQuery{}, inbox.Decision{By: "me", Reason: "mended"})
		if err != nil || got.Changed != 1 { // nothing is unknown here
			t.Error(got, err)
		}
	})
}

func TestLookupSparesTheSecondEffect(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var calls, asked atomic.Int64
		op := &once.Operation[string]{Lookup: func(context.Context, once.Key) (string, bool, error) {
			asked.Add(1)
			return "sent", true, nil
		}}
		c := doConsumer(b, op, func(context.Context, once.Key, *broker.Message) (string, error) {
			calls.Add(1)
			return "", errors.New("the reply was lost")
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "answered", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() == 1 })
		if calls.Load() != 1 || asked.Load() != 1 {
			t.Errorf("%d calls, %d questions", calls.Load(), asked.Load())
		}
	})
}

// According to Lookup, each attempt did nothing, so that nothing is unknown. Nobody is
// left to tell that the attempts failed.
func TestAMessageThatEndsItsProcessIsParkedAlthoughLookupFindsNothing(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		var deaths atomic.Int64
		op := &once.Operation[string]{Lookup: func(context.Context, once.Key) (string, bool, error) { return "", false, nil }}
		c := doConsumer(b, op, func(context.Context, once.Key, *broker.Message) (string, error) {
			if deaths.Add(1) < 20 {
				runtime.Goexit() // as far as the store and the broker can tell, the process is gone
			}
			return "", nil
		})
		c.Retry = inbox.Retry{Attempts: 4} // which waits for the end of an outage
		start(t, c)
		b.publish("orders", message("bad"))
		await(t, "the end", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load() == 1 })
		if n := deaths.Load(); n < 4 || n > 5 {
			t.Errorf("with 4 attempts, it ended %d processes", n)
		}
	})
}

func TestARejectionIsAnAnswer(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) {
			return "declined", once.ErrRejected
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
	})
}

// A replay skips the steps that are done.
func TestAReplaySkipsFinishedSteps(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Park}
		ship := &once.Operation[string]{Name: "ship", OnUnknown: once.Park}
		var charged, shipped atomic.Int64
		c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
			_, err := once.Do(ctx, b.store, charge.Under(key), func(context.Context, once.Key) (string, error) {
				charged.Add(1)
				return "charged", nil
			})
			if err != nil {
				return "", err
			}
			_, err = once.Do(ctx, b.store, ship.Under(key), func(context.Context, once.Key) (string, error) {
				if shipped.Add(1) <= 4 {
					return "", once.NotDone(errors.New("closed"))
				}
				return "shipped", nil
			})
			if err != nil {
				return "", once.NotDone(err)
			}
			return "done", nil
		})
		start(t, c)
		b.publish("orders", message("m0"))
		await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
		got, err := inbox.Admin{Store: b.store}.Replay(t.Context(), store.ShelfQuery{IDs: []string{"m0"}}, inbox.Decision{By: "me", Reason: "open"})
		if err != nil || got.Changed != 1 {
			t.Fatal(got, err)
		}
		await(t, "handled", func() bool { return c.Stats.Handled.Load() == 1 })
		if charged.Load() != 1 || shipped.Load() != 5 {
			t.Errorf("charged %d times, shipped %d", charged.Load(), shipped.Load())
		}
	})
}

// No step of a handler has the key of a count of attempts, and these keys fit
// every valid name.
func TestAttemptsAreCountedBesideAnyStepAndName(t *testing.T) {
	for _, name := range []string{"attempt", "attempts", "@attempts", strings.Repeat("n", 245)} {
		t.Run(name[:4], func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				step := &once.Operation[string]{Name: name, OnUnknown: once.Park}
				var ran atomic.Int64
				c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
					if len(name) < 100 {
						if _, err := once.Do(ctx, b.store, step.Under(key), func(context.Context, once.Key) (string, error) {
							ran.Add(1)
							return "done", nil
						}); err != nil {
							t.Error(err)
						}
					}
					return "", once.NotDone(errors.New("closed"))
				})
				if len(name) > 100 {
					c.Name = name
				}
				start(t, c)
				b.publish("orders", message("m0"))
				await(t, "parked", func() bool { return c.Stats.Parked.Load() == 1 })
				if n := ran.Load(); n > 1 {
					t.Errorf("the step ran %d times", n)
				}
			})
		})
	}
}

func TestAConsumersNameLeavesRoomForItsAttempts(t *testing.T) {
	b := newBench(t)
	c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, func(context.Context, once.Key, *broker.Message) (string, error) { return "", nil })
	c.Name = strings.Repeat("n", 246)
	if err := c.Run(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), "245") {
		t.Errorf("Run: %v, want how long a name may be", err)
	}
}

// stopping is a store whose caller is interrupted after a hundred changes.
type stopping struct {
	inbox.AdminStore
	cancel  context.CancelFunc
	changes *atomic.Int64
}

func (s stopping) Change(ctx context.Context, m store.Shelved) error {
	if s.changes.Add(1) == 100 {
		s.cancel()
	}
	return s.AdminStore.Change(ctx, m)
}

// As for once.Do, an ErrRejected that is NotDone is no answer, and neither is the
// error of a step. A message whose handler returns one is not lost.
func TestAnErrorThatIsNotDoneIsNoAnswer(t *testing.T) {
	for _, step := range []error{once.ErrRejected, once.ErrExpired, once.ErrOutcomeUnavailable} {
		notDone := once.NotDone(fmt.Errorf("the step before: %w", step))
		effect := func(context.Context, once.Key, *broker.Message) (string, error) { return "", notDone }
		check := func(t *testing.T, b *bench, c *inbox.Consumer) {
			t.Helper()
			start(t, c)
			await(t, "an end", func() bool { return c.Stats.Parked.Load()+c.Stats.Handled.Load()+c.Stats.Duplicates.Load() > 0 })
			if len(b.onTheShelf(store.Parked)) != 1 {
				t.Errorf("%v: not parked: %d handled, %d duplicates", step, c.Stats.Handled.Load(), c.Stats.Duplicates.Load())
			}
		}
		onEach(t, func(t *testing.T, b *bench, sh shape) {
			c := sh.consumer(b, func(context.Context, *memstore.Tx, *broker.Message) error { return notDone })
			b.publish("orders", message("m0"))
			check(t, b, c)
		})
		t.Run("effect", func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				c := doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, effect)
				b.publish("orders", message("m0"))
				check(t, b, c)
			})
		})
		t.Run("effect from the shelf", func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				b.shelve("mail", message("m0"))
				check(t, b, doConsumer(b, &once.Operation[string]{OnUnknown: once.Park}, effect))
			})
		})
	}
}

// A person reads the reason of a parked message first, and its list shows only
// the beginning: it is what the handler said.
func TestReasonsOfEffectsBeginWithWhatHappened(t *testing.T) {
	boom := errors.New("no such customer")
	for what, c := range map[string]struct {
		onUnknown once.OnUnknown
		err       error
		want      string
	}{
		"nothing happened, for good": {once.Park, once.NotDone(once.Permanent(boom)), "no such customer (nothing happened, a retry cannot help)"},
		"nothing happened":           {once.Park, once.NotDone(boom), "no such customer (nothing happened)"},
		"unknown, for good":          {once.Resend, once.Permanent(boom), "unknown outcome: no such customer (a retry cannot help)"},
		"unknown":                    {once.Resend, boom, "unknown outcome: no such customer"},
		"unknown, and parked":        {once.Park, boom, "unknown outcome: no such customer"},
	} {
		t.Run(what, func(t *testing.T) {
			onBench(t, func(t *testing.T, b *bench) {
				op := &once.Operation[int]{OnUnknown: c.onUnknown}
				consumer := &inbox.Consumer{Name: "billing", Source: b.broker.Queue("orders"), Retry: retryAtOnce(2), Stats: new(inbox.Stats),
					Handler: inbox.Do(b.store, op, func(context.Context, once.Key, *broker.Message) (int, error) { return 0, c.err })}
				start(t, consumer)
				b.publish("orders", message("m0"))
				await(t, "it is parked", func() bool { return consumer.Stats.Parked.Load() > 0 })
				reason := b.onTheShelf()[0].Reason
				reason = strings.TrimPrefix(reason, "attempt 2: ")
				if text, cut := strings.CutPrefix(reason, "unknown outcome: attempt 2: "); cut {
					reason = "unknown outcome: " + text
				}
				if reason != c.want {
					t.Errorf("the reason is %q, want %q", reason, c.want)
				}
			})
		})
	}
}
