package cosmosstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cosmosstore"
)

// hears returns a store that reads the change feed often.
func (a *account) hears() *cosmosstore.Store {
	return cosmosstore.New(a.container("keys"), &cosmosstore.Options{Partition: one, FeedEvery: 10 * time.Millisecond})
}

func hear(t *testing.T, s *cosmosstore.Store) store.Ear {
	t.Helper()
	ear, err := s.HearOutbox(t.Context())
	must(t, err)
	t.Cleanup(ear.Close)
	return ear
}

func wait(t *testing.T, ear store.Ear, d time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return ear.Wait(ctx)
}

func wantRing(t *testing.T, after string, ear store.Ear) {
	t.Helper()
	if err := wait(t, ear, 20*time.Second); err != nil {
		t.Errorf("after %s, Wait returned %v", after, err)
	}
}

// wantNoRing waits until each feed has been read several times.
func wantNoRing(t *testing.T, a *account, after string, ear store.Ear) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.afterReads(40, cancel)
	if err := ear.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after %s, Wait returned %v", after, err)
	}
	a.SetFault(nil)
}

// afterReads calls do after n reads of the feed.
func (a *account) afterReads(n int, do func()) {
	var reads atomic.Int64
	a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
		if r.Kind == "Feed" && reads.Add(1) == int64(n) {
			do()
		}
		return fakecosmos.None
	})
}

// An ear hears of messages that are put, in all partitions, and of no other
// writes: not of those before it, of records, of other items, and of messages that
// relays end.
func TestTheBellRingsForMessages(t *testing.T) {
	a := newAccount(t)
	s := a.hears()
	put(t, s, out("before"))
	ear := hear(t, s)
	wantNoRing(t, a, "a message before it", ear)
	for i := range 20 {
		tx := s.Begin()
		tx.CreateItem(fmt.Appendf(nil, `{"id":"%d","customer":"c%[1]d"}`, i))
		must(t, s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: fmt.Sprint(i), Topic: "t"}}}))
		must(t, tx.Commit(t.Context()))
		wantRing(t, fmt.Sprint("message ", i), ear)
	}
	late := out("late")
	late.Delay = time.Hour
	put(t, s, late)
	wantRing(t, "a delayed message", ear)
	claim(t, s, pay.For("1").Key(), time.Hour)
	tx := s.Begin()
	tx.CreateItem([]byte(`{"id":"x","customer":"c1","once":"theirs"}`))
	tx.CreateItem([]byte(`{"id":"y","customer":"c1","once":{"out":7}}`))
	must(t, tx.Commit(t.Context()))
	ms := pending(t, s)
	_, err := s.MoveOutgoing(t.Context(), [16]byte{}, ms[:5], store.Stuck)
	must(t, err)
	_, err = s.Sent(t.Context(), [16]byte{}, ms[5:], store.Keep)
	must(t, err)
	tx = s.Begin()
	tx.CreateItem([]byte(`{"id":"z","customer":"c1","once":{"out":"out/0/0/0000000000000001"}}`))
	must(t, tx.Commit(t.Context()))
	wantNoRing(t, a, "other writes", ear)
}

// A feed that begins reads no items from before, however many there are.
func TestTheBellDoesNotReadThePast(t *testing.T) {
	a := newAccount(t)
	s := a.hears()
	for i := range 30 {
		put(t, s, out(fmt.Sprint(i)))
	}
	before := a.Requests()
	ear := hear(t, s)
	if n := a.Requests() - before; n != 4 {
		t.Errorf("in 4 partitions, HearOutbox made %d requests", n)
	}
	put(t, s, out("new"))
	wantRing(t, "a message", ear)
}

// If the service does not begin the feed at its end, the ear does not read all.
func TestAFeedThatBeginsAtTheBeginningIsRefused(t *testing.T) {
	a := newAccount(t)
	s := a.hears()
	for i := range 1000 {
		claim(t, s, pay.For(fmt.Sprint(i)).Key(), time.Hour)
	}
	a.SetHeader(func(r fakecosmos.Request, h http.Header) {
		if r.Kind == "Feed" && h.Get("If-None-Match") == "*" {
			h.Del("If-None-Match")
		}
	})
	before := a.Requests()
	if _, err := s.HearOutbox(t.Context()); err == nil {
		t.Error("HearOutbox succeeded")
	}
	if n := a.Requests() - before; n > 16 {
		t.Errorf("HearOutbox made %d requests", n)
	}
}

// Partitions are split while an ear listens, and between its reads.
func TestTheBellFollowsSplits(t *testing.T) {
	a := newAccount(t)
	s := a.hears()
	ear := hear(t, s)
	for i := range 3 {
		a.Split("shop", "keys")
		put(t, s, out(fmt.Sprint(i)))
		wantRing(t, fmt.Sprint("split ", i), ear)
	}
	wantNoRing(t, a, "the splits", ear)
	waits := make(chan error, 1)
	go func() { waits <- wait(t, ear, time.Minute) }()
	a.Split("shop", "keys")
	put(t, s, out("x"))
	must(t, <-waits)
	again := hear(t, s)
	put(t, s, out("y"))
	wantRing(t, "a message, on new partitions,", again)
}

// If there are more changes than a read may have, the ear rings, and goes on at the
// end of the feed: it does not read them all.
func TestTheBellDoesNotReadManyChanges(t *testing.T) {
	a := newAccount(t)
	s := a.hears()
	ear := hear(t, s)
	const n = 1000
	for i := 0; i < n; i += 50 {
		tx := s.Begin()
		for j := range 50 {
			tx.CreateItem(fmt.Appendf(nil, `{"id":"%d","customer":"c1"}`, i+j))
		}
		must(t, tx.Commit(t.Context()))
	}
	before := a.Requests()
	wantRing(t, "many changes", ear)
	if n := a.Requests() - before; n > 6 {
		t.Errorf("after many changes, Wait made %d requests", n)
	}
	wantNoRing(t, a, "the ring", ear)
	tx := s.Begin()
	tx.CreateItem(fmt.Appendf(nil, `{"id":"large","customer":"c1","text":"%01100000d"}`, 0))
	must(t, tx.Commit(t.Context()))
	wantRing(t, "a large change", ear)
	put(t, s, out("1"))
	wantRing(t, "a message", ear)
}

// A throttled ear waits as long as the service asks for, and loses nothing.
func TestAThrottledBellWaits(t *testing.T) {
	a := newAccount(t)
	s := a.hears()
	ear := hear(t, s)
	put(t, s, out("1"))
	const refused, after = 2, time.Second
	var feeds atomic.Int64
	a.SetThrottle(func(r fakecosmos.Request) (time.Duration, bool) {
		return after, r.Kind == "Feed" && feeds.Add(1) <= refused*4
	})
	begun := time.Now()
	wantRing(t, "throttled reads", ear)
	if took := time.Since(begun); took < refused*after {
		t.Errorf("after %d reads that had to wait for %v, Wait returned within %v", refused, after, took)
	}
	a.SetThrottle(func(r fakecosmos.Request) (time.Duration, bool) { return time.Hour, r.Kind == "Feed" })
	put(t, s, out("2"))
	if err := wait(t, ear, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while it is throttled, Wait returned %v", err)
	}
}

// The connection is lost: the ear ends, and another one hears.
func TestABellWithoutItsConnectionEnds(t *testing.T) {
	t.Parallel()
	a := newAccount(t)
	s := a.hears()
	ear := hear(t, s)
	a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
		if r.Kind == "Feed" {
			return fakecosmos.LoseRequest
		}
		return fakecosmos.None
	})
	if err := wait(t, ear, time.Minute); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a connection, Wait returned %v", err)
	}
	if _, err := s.HearOutbox(t.Context()); err == nil {
		t.Error("without a connection, HearOutbox succeeded")
	}
	a.SetFault(nil)
	ear = hear(t, s)
	put(t, s, out("1"))
	wantRing(t, "the connection is back", ear)
}

// A bell that is switched off reads nothing, and relays poll.
func TestABellThatIsOff(t *testing.T) {
	a := newAccount(t)
	s := cosmosstore.New(a.container("keys"), &cosmosstore.Options{Partition: one, FeedEvery: -1})
	_, err := s.Get(t.Context(), pay.For("1").Key())
	must(t, err)
	before := a.Requests()
	ear := hear(t, s)
	if err := wait(t, ear, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || ear.Far() || a.Requests() != before {
		t.Errorf("Wait returned %v, Far %v, and there were %d requests", err, ear.Far(), a.Requests()-before)
	}
}
