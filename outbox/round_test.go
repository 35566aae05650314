//go:build go1.25

package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// Two relays with a broker each share Stats. If one broker works, the messages
// of the other, which is down, are not blamed.
func TestSharedStatsBlameNoMessageForABrokerThatIsDown(t *testing.T) {
	inBubble(t, func(b *bench) {
		other := newBench(b.T)
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		r, works := b.relay(), other.relay()
		works.Stats = r.Stats
		b.put(some(20, "a", "")...)
		stop, stopOther := b.run(r), other.run(works)
		for i := range 60 * 60 {
			other.put(message(fmt.Sprint("other", i), ""))
			time.Sleep(time.Second)
		}
		if held, stuck := len(b.rows(store.Held)), len(b.rows(store.Stuck)); held+stuck > 0 {
			b.Errorf("in an hour without a broker, %d messages were held and %d are stuck, want none", held, stuck)
		}
		stop()
		stopOther()
	})
}

// A missing topic has more messages at the front of each lane than fit into a
// chunk. Others are still published.
func TestABadTopicThatFillsTheChunkHoldsUpNoOther(t *testing.T) {
	inBubble(t, func(b *bench) {
		bad := some(16*300, "bad", "") // a chunk is 20 * Batch = 200; with the default Batch it is 10,000
		for _, m := range bad {
			m.Topic = "misspelt"
		}
		b.put(bad...)
		b.put(some(100, "good", "")...)
		b.sender.set(nil, func(m *broker.Message) error {
			if m.Topic == "misspelt" {
				return errors.New("no such topic")
			}
			return nil
		})
		r := b.relay()
		r.Batch = 10
		stop := b.run(r)
		time.Sleep(5 * time.Minute)
		if n := len(b.sender.taken()); n != 100 {
			b.Errorf("%d of 100 good messages are out after five minutes", n)
		}
		stop()
	})
}

func TestABrokerThatIsDownBlamesNobody(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(func([]*broker.Message) error { return errDown }, nil)
		all := append(some(300, "a", "key"), some(300, "b", "")...)
		b.put(all...)
		r := b.relay()
		stop := b.run(r)
		time.Sleep(2 * time.Hour)
		ms, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{Limit: 1000})
		b.must(err)
		if len(ms) != 600 || slices.ContainsFunc(ms, func(m store.Outgoing) bool { return m.Attempts > 0 }) {
			b.Errorf("%d messages are pending, some of them blamed: %+v", len(ms), ms[0])
		}
		if n := b.sender.called(); n > 2*60*60 {
			b.Errorf("a broker that is down was called %d times in two hours", n)
		}
		b.sender.set(nil, nil)
		b.until("everything is out", func() bool { return len(b.sender.taken()) == 600 })
		stop()
		b.wantAll(all)
		b.wantOrder("key")
	})
}

func TestPoisonIsStuckAndOthersFlow(t *testing.T) {
	for name, poison := range poisons {
		for _, policy := range []outbox.OnStuck{outbox.HoldOrder, outbox.Pass} {
			t.Run(fmt.Sprint(name, policy), func(t *testing.T) {
				inBubble(t, func(b *bench) {
					poison(b.sender, "key0003")
					b.put(some(10, "key", "key")...)
					b.put(some(200, "other", "")...)
					r := b.relay()
					r.OnStuck = policy
					stop := b.run(r)
					b.until("the others are out", func() bool { return len(b.sender.taken()) >= 203 })
					begun := time.Now()
					b.until("it is stuck", func() bool {
						b.put(message(fmt.Sprint("more", time.Since(begun)), "")) // others have to get through for it to be blamed
						time.Sleep(3 * time.Second)
						return len(b.rows(store.Stuck)) == 1
					})
					if spent := time.Since(begun); spent < 2*time.Second || spent > 2*time.Hour {
						b.Errorf("ten attempts took %v", spent)
					}
					time.Sleep(10 * time.Minute)
					want := 3
					if policy == outbox.Pass {
						want = 9
					}
					keyed := slices.DeleteFunc(b.sender.taken(), func(id string) bool { return !strings.HasPrefix(id, "key") })
					if len(keyed) != want {
						b.Errorf("of its key %q are out, want %d", keyed, want)
					}
					stuck, err := b.store.Outgoing(b.Context(), store.OutgoingQuery{State: store.Stuck})
					b.must(err)
					if m := stuck[0]; m.Message.ID != "key0003" || m.Attempts != 10 || m.Reason == "" {
						b.Errorf("stuck is %+v", m)
					}

					b.sender.set(nil, nil)
					tally, err := outbox.Admin{Store: b.store}.Replay(b.Context(), store.OutgoingQuery{}, outbox.Decision{By: "me", Reason: "mended"})
					b.must(err)
					if tally.Changed != 1 {
						b.Errorf("%+v", tally)
					}
					b.until("all of the key are out", func() bool { return len(b.rows(store.Held))+len(b.rows(store.Stuck)) == 0 })
					stop()
					if policy == outbox.HoldOrder {
						b.wantOrder("key")
					}
				})
			})
		}
	}
}

func TestAnInvalidMessageIsStuckAtOnce(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.sender.set(nil, func(m *broker.Message) error {
			if m.ID == "a0001" {
				return fmt.Errorf("%w: too large", broker.ErrInvalid)
			}
			return nil
		})
		b.put(some(3, "a", "")...)
		stop := b.run(b.relay())
		b.until("it is stuck", func() bool { return len(b.rows(store.Stuck)) == 1 && len(b.sender.taken()) == 2 })
		stop()
	})
}

// A missing topic does not hold up others, however many messages it has.
func TestABadTopicDoesNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(b *bench) {
		bad := some(3000, "bad", "")
		for _, m := range bad {
			m.Topic = "misspelt"
		}
		b.put(bad...)
		good := some(3000, "good", "")
		b.put(good...)
		b.sender.set(nil, func(m *broker.Message) error {
			if m.Topic == "misspelt" {
				return errors.New("no such topic")
			}
			return nil
		})
		begun := time.Now()
		stop := b.run(b.relay())
		b.until("the good ones are out", func() bool { return len(b.sender.taken()) == 3000 })
		if spent := time.Since(begun); spent > 10*time.Second {
			b.Errorf("they were held up for %v", spent)
		}
		if n := b.sender.called(); n > 300 {
			b.Errorf("there were %d calls", n)
		}
		stop()
		b.wantAll(good)
	})
}

func TestAKeyIsOnceInABatch(t *testing.T) {
	for _, overtaking := range []bool{false, true} {
		inBubble(t, func(b *bench) {
			b.put(append(some(30, "k", "key"), some(30, "a", "")...)...)
			r := b.relay()
			r.Overtaking = overtaking
			stop := b.run(r)
			b.until("everything is out", func() bool { return len(b.sender.taken()) == 60 })
			stop()
			limit := 0
			for _, call := range b.sender.calls {
				keyed := slices.DeleteFunc(slices.Clone(call), func(id string) bool { return id[0] != 'k' })
				limit = max(limit, len(keyed))
			}
			if overtaking != (limit > 1) {
				b.Errorf("overtaking %v: %d of one key in a batch", overtaking, limit)
			}
			b.wantOrder("key")
		})
	}
}

// A page ends before MaxBytes is exceeded, so it may be short although there
// are more messages.
func TestLargePoisonInFrontDoesNotHoldUpOthers(t *testing.T) {
	for name, bodies := range map[string][]int{
		"larger than a page":    {3000},
		"as large as a page":    {500, 500, 500, 500},
		"before a large one":    {10, 3000},
		"many that are smaller": {300, 300, 300, 300, 300, 300, 300, 300},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				r := b.relay()
				r.MaxBytes = 1000
				b.sender.set(nil, func(m *broker.Message) error {
					if m.Topic == "missing" {
						return errDown
					}
					return nil
				})
				for i, size := range bodies {
					m := some(len(bodies), "a", "")[i]
					m.Topic, m.Body = "missing", make([]byte, size)
					b.put(m)
				}
				b.put(some(20, "b", "")...)
				stop := b.run(r)
				time.Sleep(10 * time.Minute)
				stop()
				for _, m := range some(20, "b", "") {
					if !slices.Contains(b.sender.taken(), m.ID) {
						b.Errorf("%s is not out after ten minutes", m.ID)
					}
				}
			})
		})
	}
}
