//go:build go1.25

package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/presence"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// attended is a store with presence.
type attended struct {
	*memstore.Store
	place presence.Place

	mu      sync.Mutex
	here    map[[16]byte]bool
	refuses error      // of AppearRelay
	ids     [][16]byte // of all that appeared, in their order
}

func attend(b *bench) *attended {
	return &attended{Store: b.store, place: presence.PlaceOf("here"), here: make(map[[16]byte]bool)}
}

func (a *attended) AppearRelay(context.Context) (store.Present, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuses != nil {
		return nil, a.refuses
	}
	id := a.place.NewID()
	a.here[id] = true
	a.ids = append(a.ids, id)
	return &attendant{a, id}, nil
}

// leave ends the presence of a relay.
func (a *attended) leave(id [16]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.here, id)
}

func (a *attended) is(id [16]byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.here[id]
}

// relay returns the ID of the nth relay that appeared.
func (a *attended) relay(n int) [16]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ids[n]
}

func (a *attended) refuse(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuses = err
}

// attendant notices that its presence has ended at its next look.
type attendant struct {
	store *attended
	id    [16]byte
}

func (p *attendant) ID() [16]byte { return p.id }
func (p *attendant) Close()       { p.store.leave(p.id) }

func (p *attendant) Look(_ context.Context, others [][16]byte) (missing [][16]byte, err error) {
	if !p.store.is(p.id) {
		return nil, errors.New("the connection is broken")
	}
	for _, id := range others {
		if p.store.place.Has(id) && !p.store.is(id) {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

// dead returns the ID of a relay whose process was killed, with leases of lanes.
func (a *attended) dead(b *bench, lanes ...int) [16]byte {
	p, err := a.AppearRelay(b.Context())
	b.must(err)
	_, err = b.store.LeaseLanes(b.Context(), p.ID(), 8*time.Second, lanes)
	b.must(err)
	p.Close()
	return p.ID()
}

func allLanes() (all []int) {
	for lane := range store.Lanes {
		all = append(all, lane)
	}
	return all
}

func (b *bench) relayOf(s store.Relayable, logged *bytes.Buffer) *outbox.Relay {
	r := b.relay()
	r.Store = s
	if logged != nil {
		r.Logger = slog.New(slog.NewTextHandler(logged, nil))
	}
	return r
}

// freeAfter returns how long it takes until a message of each lane is out.
func (b *bench) freeAfter() time.Duration {
	b.Helper()
	b.put(some(50, "m", "")...)
	begun := time.Now()
	b.until("all are out", func() bool { return len(b.sender.taken()) == 50 })
	return time.Since(begun)
}

func TestTheLanesOfAProcessThatIsGoneAreFreeInThreeSeconds(t *testing.T) {
	inBubble(t, func(b *bench) {
		var logged bytes.Buffer
		s := attend(b)
		dead := s.dead(b, allLanes()...)
		stop := b.run(b.relayOf(s, &logged))
		if took := b.freeAfter(); took > 3*time.Second {
			b.Errorf("the lanes of a process that is gone were free after %v, want 3s at most", took)
		}
		stop()
		for _, want := range []string{"waiting for the lanes of another relay, whose process is gone", "are free", fmt.Sprintf("%x", dead)} {
			if !strings.Contains(logged.String(), want) {
				b.Errorf("the log does not say %q:\n%s", want, &logged)
			}
		}
		if strings.Contains(logged.String(), "no longer renews") {
			b.Errorf("the log says that a process that is gone does not renew its leases:\n%s", &logged)
		}
	})
}

// Both have half of the lanes, and one is killed.
func TestTheLanesOfAProcessThatEndsBesideAnotherAreFreeInThreeSeconds(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := attend(b)
		stop := b.run(b.relayOf(s, nil))
		dead, err := s.AppearRelay(b.Context())
		b.must(err)
		for range 100 { // until the relay has given up half of its lanes
			_, err := b.store.LeaseLanes(b.Context(), dead.ID(), 8*time.Second, []int{0, 1, 2, 3, 4, 5, 6, 7})
			b.must(err)
			time.Sleep(time.Second)
		}
		dead.Close()
		if took := b.freeAfter(); took > 3*time.Second {
			b.Errorf("the lanes of a process that is gone were free after %v, want 3s at most", took)
		}
		stop()
	})
}

// A process that is stopped, or paused by its garbage collector, still has its lock.
// And the ID of a relay without presence says nothing, whoever looks.
func TestOnlyLeasesTellOfOtherRelays(t *testing.T) {
	for name, id := range map[string]func(*bench, *attended) [16]byte{
		"stopped": func(b *bench, s *attended) [16]byte {
			p, err := s.AppearRelay(b.Context())
			b.must(err)
			return p.ID()
		},
		"without presence": func(*bench, *attended) [16]byte { return [16]byte{1, 2, 3} },
		"of another server": func(*bench, *attended) [16]byte {
			return presence.PlaceOf("elsewhere").NewID()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				var logged bytes.Buffer
				s := attend(b)
				b.dies(id(b, s))
				stop := b.run(b.relayOf(s, &logged))
				if took := b.freeAfter(); took < 7*time.Second || took > 10*time.Second {
					b.Errorf("the lanes were free after %v, want the 8s of the lease", took)
				}
				stop()
				if !strings.Contains(logged.String(), "no longer renews") || strings.Contains(logged.String(), "is gone") {
					b.Errorf("the log about a relay without presence:\n%s", &logged)
				}
			})
		})
	}
}

// A relay whose connection broke never leases lanes under its ID again, although a
// call of the publisher keeps it from beginning anew at once.
func TestARelayThatLosesItsPresenceBeginsAnew(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := attend(b)
		b.sender.gate = make(chan struct{}, 1000)
		for range 20 {
			b.sender.gate <- struct{}{}
		}
		var leased leasedBy
		stop := b.run(b.relayOf(&leasingAs{s, &leased}, nil))
		b.put(some(20, "a", "k")...)
		b.until("the first are out", func() bool { return len(b.sender.taken()) == 20 })
		b.put(some(20, "b", "k")...)
		time.Sleep(time.Second) // now the next call hangs
		first := s.relay(0)
		s.leave(first)
		lost := time.Now()
		time.Sleep(10 * time.Second)
		close(b.sender.gate)
		ended := time.Now()
		b.until("the others are out", func() bool { return len(b.sender.taken()) >= 40 })
		if took := time.Since(ended); took > time.Second {
			b.Errorf("a relay whose connection broke published again after %v", took)
		}
		time.Sleep(time.Minute)
		if last := leased.last(first); last.After(lost.Add(time.Second)) {
			b.Errorf("the ID of a presence that has ended leased lanes %v later", last.Sub(lost))
		}
		stop()
	})
}

// leasedBy is when each ID last leased lanes.
type leasedBy struct {
	mu   sync.Mutex
	when map[[16]byte]time.Time
}

func (l *leasedBy) last(id [16]byte) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.when[id]
}

type leasingAs struct {
	*attended
	by *leasedBy
}

func (s *leasingAs) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	s.by.mu.Lock()
	if s.by.when == nil {
		s.by.when = make(map[[16]byte]time.Time)
	}
	s.by.when[relay] = time.Now()
	s.by.mu.Unlock()
	return s.attended.LeaseLanes(ctx, relay, ttl, lanes)
}

// deafLooks is a store whose looks get no answer, as if a network had gone silent.
// Others see that its relays are missing.
type deafLooks struct{ *attended }

type deafLook struct{ store.Present }

func (s deafLooks) AppearRelay(ctx context.Context) (store.Present, error) {
	p, err := s.attended.AppearRelay(ctx)
	return deafLook{p}, err
}

func (p deafLook) Look(ctx context.Context, others [][16]byte) ([][16]byte, error) {
	if missing, err := p.Present.Look(ctx, others); err == nil {
		return missing, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// pending is a publisher whose calls last until their contexts end.
type pending struct {
	mu           sync.Mutex
	begun, ended time.Time // of the last call
}

func (h *pending) Close() error { return nil }

func (h *pending) Publish(ctx context.Context, ms []*broker.Message) []error {
	h.mu.Lock()
	h.begun = time.Now()
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = time.Now()
	errs := make([]error, len(ms))
	for i := range errs {
		errs[i] = context.Cause(ctx)
	}
	return errs
}

// last returns how long after a time the last call began and ended.
func (h *pending) last(t time.Time) (begun, ended time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun.Sub(t), h.ended.Sub(t)
}

// besideHanging runs a relay whose call of the publisher hangs, and another one. It
// returns when the presence of the first ended, and how long after that the second
// sent its messages.
func besideHanging(b *bench, s *attended, first store.Relayable, h *pending) (lost time.Time, sent time.Duration) {
	b.put(some(3, "m", "k")...)
	r := b.relayOf(first, nil)
	r.PublishTime, r.Publisher = time.Hour, h
	b.Cleanup(b.run(r))
	time.Sleep(5 * time.Second)
	b.Cleanup(b.run(b.relayOf(s, nil)))
	time.Sleep(5 * time.Second)
	lost = time.Now()
	if _, ended := h.last(lost); ended > -time.Hour {
		b.Fatal("the call ended although its relay was present")
	}
	s.refuse(errors.New("the server is not reached"))
	s.leave(s.relay(0))
	b.until("another relay has sent all", func() bool { return len(b.sender.taken()) == 3 })
	return lost, time.Since(lost)
}

// A relay learns that its presence has ended. Its call in progress ends before another
// relay has its lanes.
func TestACallEndsBeforeAnotherRelayHasItsLanes(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, h := attend(b), new(pending)
		lost, sent := besideHanging(b, s, s, h)
		if _, ended := h.last(lost); ended <= 0 || ended+100*time.Millisecond > sent || sent > 3*time.Second {
			b.Errorf("the call of a relay ended %v after its presence, and another one sent after %v", ended, sent)
		}
	})
}

// A relay gets no answer, and does not know that its presence has ended. It begins no
// call once another relay has its lanes, and the one in progress ends soon.
func TestARelayThatGetsNoAnswerBeginsNoCall(t *testing.T) {
	inBubble(t, func(b *bench) {
		s, h := attend(b), new(pending)
		lost, sent := besideHanging(b, s, deafLooks{s}, h)
		if sent < 2*time.Second || sent > 3*time.Second {
			b.Errorf("the other relay sent %v after the end of a presence", sent)
		}
		time.Sleep(time.Until(lost.Add(4500 * time.Millisecond)))
		if _, ended := h.last(lost); ended > 3*time.Second || ended < 0 {
			b.Errorf("the call of a relay that gets no answer ended %v after its presence", ended)
		}
	})
	inBubble(t, func(b *bench) {
		s, h := attend(b), new(pending)
		silent := b.relayOf(deafLooks{s}, nil)
		silent.Publisher = h
		stop := b.run(silent)
		time.Sleep(time.Second)
		other := b.run(b.relayOf(s, nil))
		time.Sleep(9 * time.Second) // each has half of the lanes
		s.refuse(errors.New("the server is not reached"))
		s.leave(s.relay(0))
		time.Sleep(1800 * time.Millisecond)
		if took := b.freeAfter(); took > 1200*time.Millisecond {
			b.Errorf("the lanes of a relay that gets no answer were free %v later than after 1.8s", took)
		}
		if begun, _ := h.last(time.Time{}); begun > 0 {
			b.Error("a relay that gets no answer for 1.8s began a call")
		}
		other()
		stop()
	})
}

// A proxy breaks each connection soon. Messages are published all the same, and the
// relay does not begin anew all the time.
func TestAPresenceThatAlwaysEndsDoesNotInterrupt(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := attend(b)
		stop := b.run(b.relayOf(s, nil))
		for i := range 600 {
			time.Sleep(time.Second)
			s.mu.Lock()
			clear(s.here)
			n := len(s.ids)
			s.mu.Unlock()
			if i == 599 && n > 30 {
				b.Errorf("in ten minutes, %d presences began", n)
			}
			b.put(message(fmt.Sprintf("m%04d", i), "k"))
		}
		b.until("all are out", func() bool { return len(b.sender.taken()) >= 600 })
		b.wantOrder("k")
		stop()
	})
}

// slowly is a store whose answers about presence take long.
type slowly struct {
	*attended
	appears, looks time.Duration
}

type slowPresent struct {
	store.Present
	looks time.Duration
}

func (s slowly) AppearRelay(ctx context.Context) (store.Present, error) {
	time.Sleep(s.appears)
	p, err := s.attended.AppearRelay(ctx)
	return slowPresent{p, s.looks}, err
}

func (p slowPresent) Look(ctx context.Context, others [][16]byte) ([][16]byte, error) {
	time.Sleep(p.looks)
	return p.Present.Look(ctx, others)
}

// A look that takes longer than what it proves proves nothing.
func TestARelayWhosePresenceIsSlowPublishes(t *testing.T) {
	for _, s := range []slowly{{looks: time.Second}, {looks: 1700 * time.Millisecond}, {looks: 2 * time.Second},
		{looks: 4 * time.Second}, {appears: 1500 * time.Millisecond, looks: 4 * time.Second}} {
		inBubble(t, func(b *bench) {
			s.attended = attend(b)
			stop := b.run(b.relayOf(s, nil))
			for i := range 300 {
				time.Sleep(time.Second)
				b.put(message(fmt.Sprintf("m%04d", i), "k"))
			}
			time.Sleep(20 * time.Second)
			if n := len(b.sender.taken()); n < 300 {
				b.Errorf("answers take %v and %v, and %d of 300 messages are out", s.appears, s.looks, n)
			}
			b.wantOrder("k")
			stop()
			if left := len(s.here); left > 0 {
				b.Errorf("%d presences are left", left)
			}
		})
	}
}

func TestARelayWithoutPresencePublishes(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := attend(b)
		s.refuse(errors.New("too many connections"))
		stop := b.run(b.relayOf(s, nil))
		if took := b.freeAfter(); took > time.Second {
			b.Errorf("a relay that cannot appear published after %v", took)
		}
		s.refuse(nil)
		time.Sleep(time.Minute)
		leases, err := b.store.LeaseLanes(b.Context(), [16]byte{9}, time.Second, nil)
		b.must(err)
		if len(s.ids) == 0 || leases.Lanes[0].Relay != s.relay(0) {
			b.Errorf("a minute after it could, the relay has not appeared")
		}
		stop()
	})
}

// A relay that stops has left. Its process is not said to be gone.
func TestARelayThatStopsIsNotSaidToBeGone(t *testing.T) {
	inBubble(t, func(b *bench) {
		var logged bytes.Buffer
		s := attend(b)
		stop := b.run(b.relayOf(s, &logged))
		for range 50 {
			other := b.run(b.relayOf(s, nil))
			time.Sleep(3*time.Second + 70*time.Millisecond)
			other()
		}
		stop()
		if strings.Contains(logged.String(), "gone") {
			b.Errorf("the log says:\n%s", &logged)
		}
	})
}

// Short leases lapse as soon as presence would tell.
func TestShortLeasesNeedNoPresence(t *testing.T) {
	inBubble(t, func(b *bench) {
		s := attend(b)
		r := b.relayOf(s, nil)
		r.Lease = 2 * time.Second
		stop := b.run(r)
		b.freeAfter()
		stop()
		if len(s.ids) > 0 {
			b.Error("a relay whose leases are short has appeared")
		}
	})
}
