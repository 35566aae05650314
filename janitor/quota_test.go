//go:build go1.25

package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

// listed is a store whose list a test can look at, slow down and break. Its pages are short.
type listed struct {
	*memstore.Store
	page    int
	before  func(once.RecordQuery) error // nil: nothing
	after   func(once.RecordQuery, once.RecordPage)
	begun   atomic.Int64 // lists from the beginning
	queries atomic.Int64
}

func (s *listed) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	s.queries.Add(1)
	if q.After == (once.Key{}) {
		s.begun.Add(1)
	}
	if s.before != nil {
		err = s.before(q)
	}
	if q.Limit = min(q.Limit, s.page); err == nil {
		page, err = s.Store.List(ctx, q)
	}
	if s.after != nil {
		s.after(q, page)
	}
	return page, err
}

func newListed(page int) *listed { return &listed{Store: memstore.New(nil), page: page} }

func keyOf(scope string, n int) once.Key {
	return once.Key{Scope: scope, Operation: "pay", ID: fmt.Sprint(n)}
}

// put leaves a record, which is kept for as long.
func put(t *testing.T, s once.Store, key once.Key, keep time.Duration) {
	t.Helper()
	req := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Minute}
	rec, err := s.Claim(t.Context(), req)
	if err == nil {
		err = s.Settle(t.Context(), once.Settlement{Fence: once.Fence{Key: key, Owner: req.Owner, Attempt: rec.Attempt},
			Status: once.Done, KeepOutcome: keep, KeepKey: keep})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// admit asks for room, and leaves a record if there is some.
func admit(t *testing.T, q *janitor.Quota, key once.Key, keep time.Duration) bool {
	t.Helper()
	leave, wait := q.Admit(key)
	if wait > 0 {
		return false
	}
	put(t, q.Store, key, keep)
	leave(true)
	return true
}

func count(t *testing.T, q *janitor.Quota) {
	t.Helper()
	if err := q.Count(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func wantUsed(t *testing.T, q *janitor.Quota, scope string, want int) {
	t.Helper()
	if got := q.Used(scope); got != want {
		t.Errorf("%s has %d keys, as far as is known, want %d", scope, got, want)
	}
}

func TestAQuotaCountsWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats := newListed(7), new(janitor.QuotaStats)
		for i := range 300 {
			put(t, s, keyOf([]string{"a", "b", "b"}[i%3], i), time.Hour)
		}
		put(t, s, once.Key{Scope: "a", Operation: "other", ID: "1"}, time.Hour)
		all := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 200}, Stats: stats}
		count(t, all)
		wantUsed(t, all, "a", 101)
		wantUsed(t, all, "b", 200)
		wantUsed(t, all, "c", 0)
		if n := s.queries.Load(); n < 300/7 || stats.Keys.Load() != 301 || stats.Scopes.Load() != 2 || stats.Counts.Load() != 1 {
			t.Errorf("%d pages, %d keys of %d scopes in %d counts", n, stats.Keys.Load(), stats.Scopes.Load(), stats.Counts.Load())
		}
		some := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 200}, Operation: "pay"}
		count(t, some)
		wantUsed(t, some, "a", 100)

		if admit(t, all, keyOf("b", 1000), time.Hour) || !admit(t, all, keyOf("a", 1000), time.Hour) {
			t.Error("the full scope has room, or the other has none")
		}
		wantUsed(t, all, "a", 102)
		time.Sleep(time.Hour) // what is past its time does not count, whether somebody has forgotten it or not
		count(t, all)
		wantUsed(t, all, "b", 0)
		if !admit(t, all, keyOf("b", 1000), time.Hour) {
			t.Error("there is no room after keys were forgotten")
		}
	})
}

// While it counts, keys come through it, come past it, and go.
func TestKeysComeAndGoWhileItCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newListed(10)
		for i := range 100 {
			put(t, s, keyOf("a", i), time.Hour)
		}
		q := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 1000}, Share: 1}
		count(t, q)
		var mine, other, seen int
		s.after = func(_ once.RecordQuery, page once.RecordPage) { // each lands on this page, on one before it, or on one behind it
			for _, rec := range page.Records {
				if len(rec.Key.ID) == 4 {
					seen++
				}
			}
			time.Sleep(time.Second)
			for range 5 {
				mine++
				if !admit(t, q, keyOf("a", 1000+mine), time.Hour) {
					t.Error("there is no room")
				}
			}
		}
		count(t, q)
		if seen == 0 || seen == mine {
			t.Fatalf("%d of %d are seen: that forces nothing", seen, mine)
		}
		wantUsed(t, q, "a", 100+mine) // each once, seen or not
		before := mine
		s.after = func(once.RecordQuery, once.RecordPage) {
			time.Sleep(time.Second)
			mine++
			if !admit(t, q, keyOf("a", 1000+mine), time.Hour) {
				t.Error("there is no room")
			}
			for range 10 {
				other++
				put(t, s, keyOf("a", 5000+other), time.Hour)
			}
		}
		count(t, q)
		if used := q.Used("a"); used <= 100+mine || used > 100+mine+other {
			t.Errorf("%d are known, of %d and %d that came past it; there were %d", used, 100+mine, other, 100+before)
		}
		s.after = nil
		count(t, q)
		wantUsed(t, q, "a", 100+mine+other)
	})
}

// What was there when the count began is not taken for younger by a store whose clock is coarse.
func TestACoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newListed(5)
		for i := range 20 {
			put(t, s, keyOf("a", i), time.Hour)
		}
		q := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 1000}, Share: 1}
		mine := 0
		s.after = func(_ once.RecordQuery, page once.RecordPage) {
			for i := range page.Records {
				page.Records[i].Age -= 10 * time.Millisecond
			}
			time.Sleep(time.Second)
			mine++
			admit(t, q, keyOf("a", 1000+mine), time.Hour)
		}
		count(t, q)
		wantUsed(t, q, "a", 20+mine)
	})
}

// A count finds keys that are under way as they are claimed: those are never too few.
func TestKeysUnderWayWhenItCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newListed(10)
		q := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 3}}
		late, _ := q.Admit(keyOf("a", 1)) // claimed when the count is over
		gone, _ := q.Admit(keyOf("a", 2)) // never claimed
		put(t, s, keyOf("a", 3), time.Hour)
		time.Sleep(time.Second)
		count(t, q)
		wantUsed(t, q, "a", 3)
		if admit(t, q, keyOf("a", 4), time.Hour) {
			t.Error("a place was given away twice")
		}
		gone(false)
		put(t, s, keyOf("a", 1), time.Hour)
		late(true)
		wantUsed(t, q, "a", 2)
		left, _ := q.Admit(keyOf("a", 5)) // and never claimed: it leaves while that is counted
		time.Sleep(time.Second)
		s.after = func(once.RecordQuery, once.RecordPage) { left(false) }
		count(t, q)
		wantUsed(t, q, "a", 2)
	})
}

// process is one of several with a Quota each, and what a test knows of its counts.
type process struct {
	*listed
	quota  janitor.Quota
	stats  janitor.QuotaStats
	begun  []time.Time // of each count
	went   bool        // it has let in a key
	wentBy time.Time   // when the count began that it went by as it let in its last key
}

// basis is when the last count that ended has begun. The zero time: none has.
func (p *process) basis() (at time.Time) {
	if n := p.stats.Counts.Load(); n > 0 {
		at = p.begun[n-1]
	}
	return at
}

// However keys come and go, no scope has more than the stated bound at any time.
func TestOvershootIsBounded(t *testing.T) {
	const limit, keep = 20, 20 * time.Second
	most := make(map[int]int)
	for round := range 36 {
		n := 1 + round%3
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(uint64(round), 7))
			between := float64(time.Duration(20+60*(round%4)) * time.Millisecond)
			s, all := memstore.New(nil), make([]*process, n)
			for i := range all {
				p := &process{listed: &listed{Store: s, page: 3}}
				p.before = func(q once.RecordQuery) error {
					if q.After == (once.Key{}) {
						p.begun = append(p.begun, time.Now())
					}
					time.Sleep(time.Duration(1 + i*40 + len(p.begun)%3))
					return nil
				}
				p.quota = janitor.Quota{Store: p, Limit: janitor.Limit{Keys: limit}, Every: 4 * time.Second, Share: 1, Stats: &p.stats}
				if i == 0 {
					p.after = func(once.RecordQuery, once.RecordPage) { time.Sleep(300 * time.Millisecond) } // long counts
				}
				all[i] = p
				defer run(t, &p.quota)()
			}
			came := make(map[string]time.Time) // by ID, as long as they are kept
			for i := range 600 {
				time.Sleep(time.Duration(chance.ExpFloat64() * between))
				synctest.Wait()
				p, key := all[chance.IntN(n)], keyOf("a", i)
				basis := p.basis()
				switch leave, wait := p.quota.Admit(key); {
				case wait > 0:
				case chance.IntN(4) == 0:
					leave(false)
				default:
					put(t, s, key, keep)
					leave(true)
					came[key.ID] = time.Now()
					p.went, p.wentBy = true, basis
				}
				oldest := time.Now()
				for _, p := range all {
					if p.went && p.wentBy.Before(oldest) {
						oldest = p.wentBy
					}
				}
				still := 0
				for id, at := range came {
					switch {
					case time.Since(at) >= keep:
						delete(came, id)
					case at.Before(oldest):
						still++
					}
				}
				most[n] = max(most[n], len(came))
				if len(came) > limit+(n-1)*(limit-still) {
					t.Fatalf("%d processes: %d keys, and %d of them from before the oldest count", n, len(came), still)
				}
			}
		})
	}
	if most[1] != limit || most[2] <= limit || most[3] <= most[2] {
		t.Errorf("at most there were %v keys, by the number of processes: that forces nothing", most)
	}
}

// The worst of two processes: both begin at once, and neither counts before it is over.
func TestTwoProcessesThatHaveNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newListed(1000)
		one := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 10}}
		two := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 10}}
		in := 0
		for i := range 100 {
			for n, q := range []*janitor.Quota{one, two} {
				if admit(t, q, keyOf("a", 2*i+n), time.Hour) {
					in++
				}
			}
		}
		if in != 20 {
			t.Errorf("%d were let in, want 20", in)
		}
		time.Sleep(59 * time.Minute)
		for _, q := range []*janitor.Quota{one, two} {
			count(t, q)
			wantUsed(t, q, "a", 20)
			if admit(t, q, keyOf("a", 1000), time.Hour) {
				t.Error("there is room, and 20 of 10 are there")
			}
		}
	})
}

// Of many who ask at the same time for the last place one gets it, and those who ask for the same key are one.
func TestManyAtOnce(t *testing.T) {
	const many = 64
	ask := func(q *janitor.Quota, key func(int) once.Key) (in int) {
		var asked, answered sync.WaitGroup
		var let atomic.Int64
		asked.Add(many)
		for i := range many {
			answered.Add(1)
			go func() {
				defer answered.Done()
				asked.Done()
				asked.Wait()
				if _, wait := q.Admit(key(i)); wait == 0 {
					let.Add(1)
				}
			}()
		}
		answered.Wait()
		return int(let.Load())
	}
	for range 50 {
		s := newListed(1000)
		put(t, s, keyOf("a", -1), time.Hour)
		q := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 2}}
		count(t, q)
		if in := ask(q, func(i int) once.Key { return keyOf("a", i) }); in != 1 {
			t.Fatalf("%d were let in", in)
		}
		q = &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 1}}
		if in := ask(q, func(int) once.Key { return keyOf("a", 0) }); in != many || q.Used("a") != 1 {
			t.Fatalf("%d with one key were let in, and took %d places", in, q.Used("a"))
		}
	}
}

// The place of a key is given back when the last of its requests has left, and none has left a record.
func TestRequestsWithOneKey(t *testing.T) {
	for name, kept := range map[string][2]bool{"none": {}, "the first": {true, false}, "the second": {false, true}} {
		q := &janitor.Quota{Store: newListed(1), Limit: janitor.Limit{Keys: 1, PerSecond: 1e-9}}
		first, _ := q.Admit(keyOf("a", 1))
		second, _ := q.Admit(keyOf("a", 1))
		first(kept[0])
		wantUsed(t, q, "a", 1)
		second(kept[1])
		_, wait := q.Admit(keyOf("a", 2))
		if is := kept != [2]bool{}; (wait > 0) != is {
			t.Errorf("%s has left a record: the next has to wait %v", name, wait)
		}
	}
}

func TestLimitsOfScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &janitor.Quota{Store: newListed(1), LimitOf: func(scope string) janitor.Limit {
			return map[string]janitor.Limit{"small": {Keys: 1}, "large": {Keys: 3}, "none": {Keys: -1}, "any": {},
				"slow": {PerSecond: 0.5, Burst: 2}}[scope]
		}}
		in := make(map[string]int)
		fill := func() {
			for i := range 50 {
				for _, scope := range []string{"small", "large", "none", "any", "slow"} {
					if admit(t, q, keyOf(scope, 1000*in[scope]+i), time.Hour) {
						in[scope]++
					}
				}
			}
		}
		fill()
		time.Sleep(4 * time.Second)
		fill()
		if in["small"] != 1 || in["large"] != 3 || in["none"] != 0 || in["any"] != 100 || in["slow"] != 4 {
			t.Errorf("let in: %v", in)
		}
		if _, wait := q.Admit(keyOf("slow", -1)); wait != 2*time.Second {
			t.Errorf("the next of the slow has to wait %v, want 2s", wait)
		}
	})
}

// Who is refused is told to come back when there was another count.
func TestWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, text, stats := newListed(1000), new(strings.Builder), new(janitor.QuotaStats)
		q := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 1}, Every: time.Hour, Logger: slog.New(slog.NewTextHandler(text, nil)), Stats: stats}
		refused := func() time.Duration {
			t.Helper()
			_, wait := q.Admit(keyOf("a", 2))
			if wait <= 0 {
				t.Error("it was let in")
			}
			return wait
		}
		if !admit(t, q, keyOf("a", 1), 24*time.Hour) {
			t.Fatal("there is no room")
		}
		if wait := refused(); wait != 10*time.Second || !strings.Contains(text.String(), "counted=false") {
			t.Errorf("it has to wait %v before the first count; the log says %s", wait, text)
		}
		text.Reset()
		s.before = func(once.RecordQuery) error { time.Sleep(time.Minute / 2); return nil }
		count(t, q)
		for range 5 {
			if wait := refused(); wait != time.Hour+time.Minute/2 {
				t.Errorf("it has to wait %v after a count of half a minute, want that and an hour", wait)
			}
		}
		time.Sleep(2 * time.Hour)
		if wait := refused(); wait != 10*time.Second {
			t.Errorf("it has to wait %v when the next count is overdue", wait)
		}
		if n := strings.Count(text.String(), "new keys of a scope are refused"); n != 1 || stats.Refused.Load() != 7 {
			t.Errorf("it was logged %d times, and counted %d times: %s", n, stats.Refused.Load(), text)
		}
		if !strings.Contains(text.String(), "scope=a keys=1 limit=1") || !strings.Contains(text.String(), "counted=true") {
			t.Errorf("the log says %s", text)
		}
	})
}

// While the store fails, what was counted last holds. Then the count goes on where it was.
func TestAQuotaOfAStoreInTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stats, text := newListed(10), new(janitor.QuotaStats), new(strings.Builder)
		for i := range 95 {
			put(t, s, keyOf("a", i), 24*time.Hour)
		}
		q := &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 100}, Stats: stats, Logger: slog.New(slog.NewTextHandler(text, nil))}
		var down atomic.Bool
		s.before = func(q once.RecordQuery) error {
			if down.Load() && q.After != (once.Key{}) {
				return errBoom
			}
			return nil
		}
		stop := run(t, q)
		time.Sleep(time.Minute)
		down.Store(true)
		time.Sleep(10 * time.Minute) // by now the next count has begun
		for i := range 95 {
			put(t, s, keyOf("b", i), 24*time.Hour)
		}
		counts, begun := stats.Counts.Load(), s.begun.Load()
		if !errors.Is(q.Count(t.Context()), once.ErrInvalid) {
			t.Error("it was counted twice at a time")
		}
		in := 0
		for i := range 50 {
			if admit(t, q, keyOf("a", 1000+i), 24*time.Hour) {
				in++
			}
		}
		if in != 5 {
			t.Errorf("%d were let in, want 5", in)
		}
		time.Sleep(5 * time.Hour)
		wantUsed(t, q, "a", 100)
		wantUsed(t, q, "b", 0)
		if stats.Counts.Load() != counts {
			t.Errorf("%d counts ended", stats.Counts.Load()-counts)
		}
		if calls := s.queries.Load(); calls > 500 {
			t.Errorf("%d calls to a store that fails, in five hours", calls)
		}
		down.Store(false)
		time.Sleep(6 * time.Minute)
		if stats.Counts.Load() == counts || s.begun.Load() > begun+1 { // perhaps the one after it has begun
			t.Errorf("%d counts ended, %d were begun", stats.Counts.Load()-counts, s.begun.Load()-begun)
		}
		stop()
		if !strings.Contains(text.String(), "boom") {
			t.Errorf("the log says nothing of it: %s", text)
		}
		count(t, q) // it can be counted again
		wantUsed(t, q, "a", 100)
		wantUsed(t, q, "b", 95)
		down.Store(true)
		if err := q.Count(t.Context()); !errors.Is(err, errBoom) {
			t.Errorf("Count returned %v", err)
		}
		wantUsed(t, q, "b", 95)
	})
}

// However many keys there are, the store has its rest, and a call that hangs is given up.
func TestTheShareOfAQuota(t *testing.T) {
	for share, want := range map[float64]float64{0: 0.05, 0.5: 0.5, 1: 1} {
		synctest.Test(t, func(t *testing.T) {
			s := newListed(10)
			for i := range 1000 {
				put(t, s, keyOf("a", i), 24*time.Hour)
			}
			s.before = func(once.RecordQuery) error { time.Sleep(20 * time.Millisecond); return nil }
			begun := time.Now()
			count(t, &janitor.Quota{Store: s, Limit: janitor.Limit{Keys: 1}, Share: share})
			took := float64(s.queries.Load()) * float64(20*time.Millisecond) / float64(time.Since(begun))
			if took > want*1.02 || took < want*0.6 { // there is no rest after the last page
				t.Errorf("with a share of %v it took %v of the time, want %v", share, took, want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		q := &janitor.Quota{Store: &hangingList{memstore.New(nil)}, Limit: janitor.Limit{Keys: 1}}
		if err := q.Count(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Count returned %v", err)
		}
		stop := run(t, q)
		time.Sleep(time.Hour)
		stop()
	})
}

type hangingList struct{ *memstore.Store }

func (*hangingList) List(ctx context.Context, _ once.RecordQuery) (once.RecordPage, error) {
	<-ctx.Done()
	return once.RecordPage{}, ctx.Err()
}

func TestAQuotaThatIsSetUpWrong(t *testing.T) {
	s := memstore.New(nil)
	some := janitor.Limit{Keys: 1}
	for name, c := range map[string]struct {
		q    *janitor.Quota
		says string
	}{
		"no store":       {&janitor.Quota{Limit: some}, "needs a Store"},
		"no list":        {&janitor.Quota{Store: struct{ once.Store }{s}, Limit: some}, "no once.Lister"},
		"no list inside": {&janitor.Quota{Store: storetest.Faulty(struct{ once.Store }{s}, nil), Limit: some}, "no once.Lister"},
		"no limit":       {&janitor.Quota{Store: s, Limit: janitor.Limit{PerSecond: 1}}, "Limit.Keys or LimitOf"},
		"every":          {&janitor.Quota{Store: s, Limit: some, Every: -1}, "Every"},
		"every for ever": {&janitor.Quota{Store: s, Limit: some, Every: math.MaxInt64}, "Every"},
		"share":          {&janitor.Quota{Store: s, Limit: some, Share: 1.1}, "Share"},
		"no share":       {&janitor.Quota{Store: s, Limit: some, Share: math.NaN()}, "Share"},
	} {
		for verb, do := range map[string]func(context.Context) error{"Run": c.q.Run, "Count": c.q.Count} {
			if err := do(t.Context()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %s returned %v", name, verb, err)
			}
		}
	}
}
