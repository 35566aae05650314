//go:build go1.25

package outbox_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// dies leases all lanes to a relay whose process has ended, for as long as relays
// do by default.
func (b *bench) dies(dead [16]byte) {
	b.Helper()
	all := make([]int, store.Lanes)
	for i := range all {
		all[i] = i
	}
	_, err := b.store.LeaseLanes(b.Context(), dead, 8*time.Second, all)
	b.must(err)
}

// A process is killed, and its successor starts at once.
func TestTheLanesOfADeadRelayAreFreeInTenSeconds(t *testing.T) {
	inBubble(t, func(b *bench) {
		var logged bytes.Buffer
		dead := [16]byte{1, 2, 3}
		b.dies(dead)
		r := b.relay()
		r.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		b.put(some(50, "m", "")...)
		begun := time.Now()
		stop := b.run(r)
		b.until("all are out", func() bool { return len(b.sender.taken()) == 50 })
		if took := time.Since(begun); took > 10*time.Second {
			b.Errorf("the messages of a dead relay were published after %v, want 10s at most", took)
		}
		stop()
		name := hex.EncodeToString(dead[:])
		for _, want := range []string{"waiting for lanes, which another relay has", "no longer renews its leases", "are free", name,
			"lanes=\"[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]\""} {
			if !strings.Contains(logged.String(), want) {
				b.Errorf("the log does not say %q:\n%s", want, &logged)
			}
		}
	})
}

// Two relays share the work, and one of them is killed. The other has its lanes in
// ten seconds, too.
func TestTheLanesOfARelayThatDiesBesideAnotherAreFreeInTenSeconds(t *testing.T) {
	inBubble(t, func(b *bench) {
		dead, half := [16]byte{1, 2, 3}, []int{0, 1, 2, 3, 4, 5, 6, 7}
		stop := b.run(b.relay())
		for range 100 { // the relay gives up half of its lanes
			_, err := b.store.LeaseLanes(b.Context(), dead, 8*time.Second, half)
			b.must(err)
			time.Sleep(time.Second)
		}
		b.put(some(50, "m", "")...)
		begun := time.Now()
		b.until("all are out", func() bool { return len(b.sender.taken()) == 50 })
		if took := time.Since(begun); took > 10*time.Second {
			b.Errorf("the messages of a dead relay were published after %v, want 10s at most", took)
		}
		stop()
	})
}

// A relay that renews its leases is not said to have ended, whatever its Lease.
func TestARelayThatRenewsIsNotSaidToHaveEnded(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 8 * time.Second, time.Minute} {
		inBubble(t, func(b *bench) {
			var logged bytes.Buffer
			first, second := b.relay(), b.relay()
			first.Lease = lease
			second.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			stop := b.run(first)
			time.Sleep(time.Second)
			other := b.run(second)
			time.Sleep(time.Hour)
			other()
			stop()
			if strings.Contains(logged.String(), "no longer renews") {
				b.Errorf("with a Lease of %v: %s", lease, &logged)
			}
		})
	}
}

// slowLeases is a store whose LeaseLanes hangs, whatever its context.
type slowLeases struct {
	store.Relayable
	calls *atomic.Int32
	hangs chan struct{}
}

func (s slowLeases) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	as, err := s.Relayable.LeaseLanes(context.WithoutCancel(ctx), relay, ttl, lanes)
	if as.Relays = 1; s.calls.Add(1) > 2 {
		as.Relays = 2 // half of the lanes are surplus now
	}
	<-s.hangs
	return as, err
}

// While a request of leases hangs, the lanes that are leased are published from,
// although there are others to give up.
func TestPublishingDoesNotWaitForARequestOfLeases(t *testing.T) {
	inBubble(t, func(b *bench) {
		hangs := make(chan struct{}, 100)
		for range 3 { // that there are lanes, the first ones, and that there are too many
			hangs <- struct{}{}
		}
		var calls atomic.Int32
		b.sender.set(nil, func(*broker.Message) error {
			for calls.Load() < 4 { // until there are lanes to give up, and the next request hangs
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
		r := b.relay()
		r.Store = slowLeases{b.store, &calls, hangs}
		stop := b.run(r)
		for i := range 30 {
			b.put(some(20, "m"+string(rune('a'+i)), "")...)
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(b.sender.taken()); n < 100 {
			b.Errorf("%d messages were published in three seconds while a request of leases hung, want half of 600", n)
		}
		close(hangs)
		stop()
	})
}

// A call of the publisher takes longer than a lease. It goes on while the leases are
// renewed, and ends when they can no longer be.
func TestACallEndsWithItsLease(t *testing.T) {
	inBubble(t, func(b *bench) {
		var cut atomic.Bool
		r := b.relay()
		r.Store, r.Lease, r.PublishTime = cutStore{b.store, &cut}, 2*time.Second, time.Hour
		var took atomic.Int64
		r.Publisher = publisherFunc(func(ctx context.Context, ms []*broker.Message) []error {
			begun := time.Now()
			<-ctx.Done()
			took.Store(int64(time.Since(begun)))
			errs := make([]error, len(ms))
			for i := range errs {
				errs[i] = context.Cause(ctx)
			}
			return errs
		})
		b.put(some(3, "m", "")...)
		stop := b.run(r)
		time.Sleep(time.Minute)
		if took.Load() != 0 {
			b.Errorf("a call ended after %v, although the leases were renewed", time.Duration(took.Load()))
		}
		cut.Store(true)
		time.Sleep(3 * time.Second)
		if n := time.Duration(took.Load()); n < time.Minute || n > time.Minute+3*time.Second {
			b.Errorf("a call ended after %v, want soon after a minute, when the leases lapsed", n)
		}
		cut.Store(false)
		stop()
	})
}

type publisherFunc func(context.Context, []*broker.Message) []error

func (f publisherFunc) Publish(ctx context.Context, ms []*broker.Message) []error { return f(ctx, ms) }
func (publisherFunc) Close() error                                                { return nil }
