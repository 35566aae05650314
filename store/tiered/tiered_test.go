package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/cachetest"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/tiered"
)

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

// shop is a database, a cache, and how often work has run.
type shop struct {
	*testing.T
	db    *memstore.Store
	calls *counting
	runs  int
}

func newShop(t *testing.T, o once.Options) *shop {
	db := memstore.New(&memstore.Options{Options: o})
	return &shop{T: t, db: db, calls: &counting{TxStore: db, n: make(map[string]int)}}
}

func (s *shop) tiered(c tiered.Cache, o *tiered.Options) *tiered.TxStore[*memstore.Tx] {
	return tiered.NewTx[*memstore.Tx](s.calls, c, o)
}

// do pays, and returns the answer.
func (s *shop) do(with once.Store, w once.Work[string]) (string, error) {
	return once.Do(s.Context(), with, w, func(context.Context, once.Key) (string, error) {
		s.runs++
		return fmt.Sprint("paid ", s.runs), nil
	})
}

// pays pays, and checks the answer.
func (s *shop) pays(with once.Store, id, want string) {
	s.Helper()
	if got, err := s.do(with, pay.For(id)); got != want || err != nil {
		s.Errorf("the answer is %q, %v; want %q", got, err, want)
	}
}

// costs checks how often the database was asked since the last time.
func (s *shop) costs(what string, want int) {
	s.Helper()
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	n := 0
	for _, calls := range s.calls.n {
		n += calls
	}
	if n != want {
		s.Errorf("%s cost %d calls of the database, want %d: %v", what, n, want, s.calls.n)
	}
	clear(s.calls.n)
}

// counting counts the calls of a store.
type counting struct {
	once.TxStore[*memstore.Tx]

	mu sync.Mutex
	n  map[string]int
}

func (c *counting) Unwrap() once.Store { return c.TxStore }

func (c *counting) count(method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[method]++
}

func (c *counting) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	c.count("Claim")
	return c.TxStore.Claim(ctx, r)
}

func (c *counting) Settle(ctx context.Context, set once.Settlement) error {
	c.count("Settle")
	return c.TxStore.Settle(ctx, set)
}

func (c *counting) Get(ctx context.Context, k once.Key) (once.Record, error) {
	c.count("Get")
	return c.TxStore.Get(ctx, k)
}

func (c *counting) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(*memstore.Tx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {

	c.count("Transact")
	return c.TxStore.Transact(ctx, rs, body)
}

func (c *counting) ClaimTx(ctx context.Context, tx *memstore.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	c.count("ClaimTx")
	return c.TxStore.ClaimTx(ctx, tx, rs)
}

func (s *shop) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func TestDuplicatesCostTheDatabaseNothing(t *testing.T) {
	sealed, err := once.NewRing(once.Secret{ID: "1", Bytes: []byte(strings.Repeat("s", 32))})
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]once.Options{
		"plain":  {},
		"keyed":  {Secret: []byte("secret")},
		"sealed": {Sealing: once.Sealing{Ring: sealed, Only: once.SealOutcomes}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, o)
			cache := new(cachetest.Memory)
			first, other := s.tiered(cache, nil), s.tiered(cache, nil)
			runTx := func(with once.TxStore[*memstore.Tx], w once.Work[string]) (string, error) {
				return once.DoTx(t.Context(), with, w, func(context.Context, *memstore.Tx) (string, error) { return "in a transaction", nil })
			}
			inTx := func(context.Context) (string, error) { return "", errors.New("it has run again") }

			s.pays(first, "1", "paid 1")
			s.costs("the first Do", 2)
			_, err := runTx(first, pay.For("2").Input([]byte("EUR")))
			s.must(err)
			s.costs("the first DoTx", 1)

			for _, with := range []*tiered.TxStore[*memstore.Tx]{first, other} {
				var report once.Report
				got, err := s.do(with, pay.For("1").Report(&report))
				if got != "paid 1" || err != nil || report != (once.Report{Replayed: true, Attempt: 1}) {
					t.Errorf("a duplicate returned %q, %v, %+v", got, err, report)
				}
				s.costs("a duplicate of Do", 0)
				_, err = s.do(with, pay.For("1").Redelivered())
				s.must(err)
				s.costs("a redelivery", 0)
				got, err = runTx(with, pay.For("2").Input([]byte("EUR")))
				if got != "in a transaction" || err != nil {
					t.Errorf("a duplicate of DoTx returned %q, %v", got, err)
				}
				s.costs("a duplicate of DoTx", 0)
				tx := s.db.Begin()
				_, err = once.InTx(t.Context(), with, tx, pay.For("2"), inTx)
				s.must(err)
				tx.Rollback()
				s.costs("a duplicate of InTx", 0)
				if _, err := runTx(with, pay.For("2").Input([]byte("USD"))); !errors.Is(err, once.ErrMismatch) {
					t.Errorf("a duplicate with another input returned %v", err)
				}
				s.costs("a mismatch", 0)
			}
		})
	}
}

func request(id string) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "op", ID: id}, Owner: [16]byte{1, id[0]}}, Lease: time.Hour}
}

func done(r once.ClaimRequest, attempt int64) once.Settlement {
	r.Attempt = attempt
	return once.Settlement{Fence: r.Fence, Status: once.Done, Outcome: once.Outcome{Body: []byte("answer of " + r.Key.ID)},
		KeepOutcome: time.Hour, KeepKey: time.Hour}
}

// A batch asks the store only about what the cache does not know.
func TestABatchClaimsTheRest(t *testing.T) {
	s := newShop(t, once.Options{})
	with := s.tiered(new(cachetest.Memory), nil)
	batch := func(want string, ids ...string) {
		t.Helper()
		var rs []once.ClaimRequest
		for _, id := range ids {
			rs = append(rs, request(id))
			rs[len(rs)-1].Owner = [16]byte{byte(s.runs), id[0]}
		}
		s.runs++
		var entered []string
		recs, err := with.Transact(t.Context(), rs, func(_ *memstore.Tx, recs []once.Record) (sets []once.Settlement, err error) {
			for i, rec := range recs {
				if rec.Key != rs[i].Key {
					t.Errorf("the record of %q is that of %q", rs[i].Key.ID, rec.Key.ID)
				}
				if rec.HeldBy(rs[i].Owner) {
					entered = append(entered, rec.Key.ID)
					sets = append(sets, done(rs[i], rec.Attempt))
				} else if string(rec.Outcome.Body) != "answer of "+rec.Key.ID {
					t.Errorf("the body saw %q of %q", rec.Outcome.Body, rec.Key.ID)
				}
			}
			return sets, nil
		})
		s.must(err)
		for i, rec := range recs {
			if rec.Key != rs[i].Key || rec.Status == once.Done && string(rec.Outcome.Body) != "answer of "+rec.Key.ID {
				t.Errorf("Transact returned %v for %q", rec, rs[i].Key.ID)
			}
		}
		if got := strings.Join(entered, ""); got != want {
			t.Errorf("of %q the body ran %q, want %q", ids, got, want)
		}
	}
	batch("bd", "b", "d")
	s.costs("a batch", 1)
	batch("ace", "a", "b", "c", "d", "e")
	s.costs("a batch with duplicates", 1)
	batch("", "a", "b", "c", "d", "e")
	s.costs("a batch of duplicates", 0)
	if n := with.Stats().Hits; n != 7 {
		t.Errorf("%d hits, want 7", n)
	}
}

// The first duplicate asks the store, and fills the cache.
func TestAWipedCacheIsFilledAgain(t *testing.T) {
	s := newShop(t, once.Options{})
	cache := new(cachetest.Memory)
	with := s.tiered(cache, nil)
	s.pays(with, "1", "paid 1")
	s.costs("the first call", 2)
	for _, want := range []int{1, 0} {
		if want == 1 {
			cache.Wipe()
		}
		s.pays(with, "1", "paid 1")
		s.costs("a duplicate", want)
	}
}

// broken is a cache that does nothing but fail, slowly.
type broken struct {
	slow  time.Duration
	mu    sync.Mutex
	calls int
}

func (b *broken) fail(ctx context.Context) error {
	b.mu.Lock()
	b.calls++
	b.mu.Unlock()
	select {
	case <-time.After(b.slow):
		return cachetest.ErrDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *broken) Get(ctx context.Context, _ ...string) ([][]byte, error) { return nil, b.fail(ctx) }

func (b *broken) Add(ctx context.Context, _ map[string][]byte, _ time.Duration) error {
	return b.fail(ctx)
}

func (b *broken) Set(ctx context.Context, _ string, _ []byte, _ time.Duration) error {
	return b.fail(ctx)
}

func (b *broken) asked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}

func TestACacheThatIsDownIsLeftAlone(t *testing.T) {
	for _, slow := range []time.Duration{0, time.Minute} {
		t.Run(slow.String(), func(t *testing.T) {
			faketime.Test(t, func(t *testing.T) {
				log := new(logtest.Log)
				s := newShop(t, once.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
				cache := &broken{slow: slow}
				with := s.tiered(cache, nil)
				begun := time.Now()
				for range 10 {
					s.pays(with, "1", "paid 1")
				}
				if took := time.Since(begun); cache.asked() != 3 || took > 2*time.Second {
					t.Errorf("ten calls asked the cache %d times, and took %v", cache.asked(), took)
				}
				for range 3 {
					time.Sleep(1100 * time.Millisecond)
					before := cache.asked()
					s.pays(with, "1", "paid 1")
					s.pays(with, "1", "paid 1")
					if n := cache.asked() - before; n != 1 {
						t.Errorf("after a second, the cache was asked %d times, want once", n)
					}
				}
				if n := strings.Count(log.String(), "the cache in front of the store fails"); n != 1 {
					t.Errorf("the trouble was logged %d times", n)
				}
				if got := with.Stats(); got.Hits != 0 || got.Failed != 6 || got.Left == 0 {
					t.Errorf("the statistics are %+v", got)
				}
			})
		})
	}
}

// Callers who wait for less than Options.Wait get their answers, too.
func TestACacheThatHangsLeavesTimeForTheStore(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		s := newShop(t, once.Options{})
		cache := &broken{slow: time.Minute}
		with := s.tiered(cache, nil)
		s.pays(s.db, "1", "paid 1")
		r := request("1")
		r.Key = pay.For("1").Key()
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			rec, err := with.Claim(ctx, r)
			if cancel(); err != nil || rec.Status != once.Done {
				t.Errorf("Claim returned a record that is %v, %v", rec.Status, err)
			}
		}
		if n := cache.asked(); n != 3 {
			t.Errorf("ten calls asked the cache %d times, want 3 times", n)
		}
	})
}

func TestACacheThatIsBackIsUsed(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		s := newShop(t, once.Options{})
		cache := &switched{Memory: new(cachetest.Memory), down: true}
		with := s.tiered(cache, nil)
		for range 5 {
			s.pays(with, "1", "paid 1")
		}
		cache.down = false
		time.Sleep(1100 * time.Millisecond)
		s.pays(with, "1", "paid 1")
		s.calls.n = make(map[string]int)
		s.pays(with, "1", "paid 1")
		s.costs("a duplicate", 0)
	})
}

type switched struct {
	*cachetest.Memory
	down bool
}

func (s *switched) Get(ctx context.Context, keys ...string) ([][]byte, error) {
	if s.down {
		return nil, cachetest.ErrDown
	}
	return s.Memory.Get(ctx, keys...)
}

// An answer that the cache made up, or mixed up, is not given.
func TestALyingCacheIsNotBelieved(t *testing.T) {
	for name, secret := range map[string][]byte{"with a secret": []byte("secret"), "without": nil} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, once.Options{Secret: secret})
			cache := new(cachetest.Memory)
			with := s.tiered(cache, nil)
			s.pays(with, "1", "paid 1")
			s.pays(with, "2", "paid 2")
			good := cache.Values()
			keys := slices.Sorted(maps.Keys(good))
			lies := map[string]func(map[string][]byte){
				"keys are mixed up": func(v map[string][]byte) { v[keys[0]], v[keys[1]] = v[keys[1]], v[keys[0]] },
				"all are empty":     func(v map[string][]byte) { v[keys[0]], v[keys[1]] = []byte{}, []byte{} },
			}
			for i := range good[keys[0]] {
				lies[fmt.Sprint("byte ", i)] = func(v map[string][]byte) { v[keys[0]][i] ^= 0x10 }
				lies[fmt.Sprint("ends at ", i)] = func(v map[string][]byte) { v[keys[0]] = v[keys[0]][:i] }
			}
			forger := newShop(t, once.Options{Secret: []byte("another")})
			theirs := new(cachetest.Memory)
			forger.runs = 100
			forger.pays(forger.tiered(theirs, nil), "1", "paid 101")
			lies["sealed under another secret"] = func(v map[string][]byte) { maps.Copy(v, theirs.Values()) }
			for lie, tell := range lies {
				cache.Wipe()
				cache.Change(func(v map[string][]byte) {
					for k, value := range good {
						v[k] = slices.Clone(value)
					}
					tell(v)
				})
				s.pays(with, "1", "paid 1")
				s.pays(with, "2", "paid 2")
				if t.Failed() {
					t.Fatalf("after a lie: %s", lie)
				}
			}
			if s.runs != 2 {
				t.Errorf("work ran %d times", s.runs)
			}
		})
	}
}

// A cache may keep a value longer than it was told.
func TestAnAnswerIsNotKeptLongerThanItsOutcome(t *testing.T) {
	short := *pay
	short.Policy = once.Policy{KeepOutcome: time.Minute, KeepKey: 2 * time.Minute}
	for name, fill := range map[string]func(s *shop, with once.Store, c *cachetest.Memory){
		"settled": func(*shop, once.Store, *cachetest.Memory) {},
		"met": func(s *shop, with once.Store, c *cachetest.Memory) {
			c.Wipe()
			time.Sleep(30 * time.Second)
			_, err := s.do(with, short.For("1"))
			s.must(err)
		},
	} {
		for _, forever := range []bool{false, true} {
			t.Run(fmt.Sprint(name, forever), func(t *testing.T) {
				faketime.Long(t, func(t *testing.T) {
					s := newShop(t, once.Options{})
					cache := new(cachetest.Memory)
					with := s.tiered(cache, nil)
					begun := time.Now()
					_, err := s.do(with, short.For("1"))
					s.must(err)
					fill(s, with, cache)
					if forever {
						cache.Change(func(map[string][]byte) {})
					}
					s.calls.n = make(map[string]int)
					time.Sleep(time.Until(begun.Add(59 * time.Second)))
					if got, err := s.do(with, short.For("1")); got != "paid 1" || err != nil {
						t.Errorf("within KeepOutcome the answer is %q, %v", got, err)
					}
					s.costs("a duplicate within KeepOutcome", 0)
					time.Sleep(2 * time.Second)
					if _, err := s.do(with, short.For("1")); !errors.Is(err, once.ErrExpired) {
						t.Errorf("after KeepOutcome the error is %v", err)
					}
					time.Sleep(time.Minute)
					if got, err := s.do(with, short.For("1")); got != "paid 2" || err != nil {
						t.Errorf("after KeepKey the answer is %q, %v", got, err)
					}
				})
			})
		}
	}
}

// A settlement that is repeated after the outcome has expired succeeds, and must
// not bring the outcome back.
func TestALateRepeatOfASettlementIsNotCached(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		s := newShop(t, once.Options{})
		lossy := &losingReplies{TxStore: s.db}
		with := tiered.NewTx[*memstore.Tx](lossy, new(cachetest.Memory), nil)
		r := request("1")
		rec, err := with.Claim(t.Context(), r)
		s.must(err)
		set := done(r, rec.Attempt)
		set.KeepOutcome = time.Minute
		lossy.lose = true
		if with.Settle(t.Context(), set) == nil {
			t.Error("no reply was lost")
		}
		lossy.lose = false
		time.Sleep(2 * time.Minute)
		s.must(with.Settle(t.Context(), set))
		r.Owner[0]++
		if rec, err := with.Claim(t.Context(), r); err != nil || rec.Status != once.Expired {
			t.Errorf("a duplicate gets %v, %v", rec.Status, err)
		}
	})
}

// losingReplies loses the replies of settlements.
type losingReplies struct {
	once.TxStore[*memstore.Tx]
	lose bool
}

func (l *losingReplies) Unwrap() once.Store { return l.TxStore }

func (l *losingReplies) Settle(ctx context.Context, set once.Settlement) error {
	err := l.TxStore.Settle(ctx, set)
	if l.lose {
		err = errors.New("the reply was lost")
	}
	return err
}

func TestMaxAge(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		s := newShop(t, once.Options{})
		cache := new(cachetest.Memory)
		with := s.tiered(cache, &tiered.Options{MaxAge: time.Minute})
		s.pays(with, "1", "paid 1")
		cache.Change(func(map[string][]byte) {}) // it keeps values longer than it was told
		time.Sleep(59 * time.Second)
		s.costs("the first call", 2)
		s.pays(with, "1", "paid 1")
		s.costs("a duplicate within MaxAge", 0)
		time.Sleep(2 * time.Second)
		s.pays(with, "1", "paid 1")
		s.costs("a duplicate after MaxAge", 1)
	})
}

func TestOnlyWhatIsFinalIsCached(t *testing.T) {
	s := newShop(t, once.Options{})
	cache := new(cachetest.Memory)
	with := s.tiered(cache, nil)
	for i, status := range []once.Status{once.Absent, once.Unknown, once.Parked} {
		r := request(fmt.Sprint(i))
		rec, err := with.Claim(t.Context(), r)
		s.must(err)
		set := done(r, rec.Attempt)
		set.Status, set.Outcome = status, once.Outcome{}
		s.must(with.Settle(t.Context(), set))
		r.Owner[0]++
		_, err = with.Claim(t.Context(), r)
		s.must(err)
	}
	if n := len(cache.Values()); n > 0 {
		t.Errorf("%d records that are not done were cached", n)
	}
}

func TestWhatFailedIsNotCached(t *testing.T) {
	s := newShop(t, once.Options{})
	cache := new(cachetest.Memory)
	failing := &losingReplies{TxStore: s.db, lose: true}
	with := tiered.NewTx[*memstore.Tx](failing, cache, nil)
	r := request("1")
	rec, err := with.Claim(t.Context(), r)
	s.must(err)
	if with.Settle(t.Context(), done(r, rec.Attempt)) == nil {
		t.Error("no reply was lost")
	}
	_, err = with.Transact(t.Context(), []once.ClaimRequest{request("2")}, func(*memstore.Tx, []once.Record) ([]once.Settlement, error) {
		return []once.Settlement{done(request("2"), 1)}, errors.New("the work failed")
	})
	if err == nil || len(cache.Values()) > 0 {
		t.Errorf("%d answers are cached, %v", len(cache.Values()), err)
	}
}

// The caller may roll back what a claim in his transaction has met.
func TestATransactionOfTheCallerIsNotCached(t *testing.T) {
	s := newShop(t, once.Options{})
	cache := new(cachetest.Memory)
	with := s.tiered(cache, nil)
	tx, r := s.db.Begin(), request("1")
	recs, err := with.ClaimTx(t.Context(), tx, []once.ClaimRequest{r})
	s.must(err)
	s.must(with.SettleTx(t.Context(), tx, []once.Settlement{done(r, recs[0].Attempt)}))
	r.Owner[0]++
	if recs, err = with.ClaimTx(t.Context(), tx, []once.ClaimRequest{r}); err != nil || recs[0].Status != once.Done {
		t.Errorf("a repeated claim returned %v, %v", recs, err)
	}
	tx.Rollback()
	if n := len(cache.Values()); n > 0 {
		t.Error("what was rolled back is cached")
	}
}

func TestARecordOverMaxSizeIsNotCached(t *testing.T) {
	s := newShop(t, once.Options{})
	cache := new(cachetest.Memory)
	with := s.tiered(cache, &tiered.Options{MaxSize: 1000})
	for i, n := range []int{700, 1001} {
		_, err := once.Do(t.Context(), with, pay.For(fmt.Sprint(i)), func(context.Context, once.Key) (string, error) {
			return strings.Repeat("x", n), nil
		})
		s.must(err)
	}
	if n := len(cache.Values()); n != 1 {
		t.Errorf("%d records are cached, want 1", n)
	}
}

func TestWithoutACache(t *testing.T) {
	s := newShop(t, once.Options{})
	with := s.tiered(nil, nil)
	s.pays(with, "1", "paid 1")
	s.pays(with, "1", "paid 1")
	s.costs("two calls", 3)
	s.reopens(with, "1")
	s.pays(with, "1", "paid 2")
}

// reopens has work run again.
// An answer may be given for as long as it is kept, and a mark still keeps it
// out.
func TestTheLongestMaxAge(t *testing.T) {
	s := newShop(t, once.Options{})
	with := s.tiered(new(cachetest.Memory), &tiered.Options{MaxAge: math.MaxInt64})
	s.pays(with, "1", "paid 1")
	s.costs("the first call", 2)
	s.pays(with, "1", "paid 1")
	s.costs("a duplicate", 0)
	late := &lateAdds{Memory: new(cachetest.Memory)}
	with, other := s.tiered(late.Memory, &tiered.Options{MaxAge: math.MaxInt64}), s.tiered(late, &tiered.Options{MaxAge: math.MaxInt64})
	s.pays(other, "1", "paid 1")
	s.reopens(with, "1")
	s.must(late.adds[0]())
	s.pays(other, "1", "paid 2")
}

func (s *shop) reopens(with once.Store, id string) {
	s.Helper()
	rec, err := s.db.Get(s.Context(), pay.For(id).Key())
	s.must(err)
	s.must(store.Reopen(s.Context(), with, rec, "ana: the wrong card"))
}

func TestReopenTellsTheCache(t *testing.T) {
	s := newShop(t, once.Options{})
	cache := new(cachetest.Memory)
	with, other := s.tiered(cache, nil), s.tiered(cache, nil)
	s.pays(with, "1", "paid 1")
	s.pays(other, "1", "paid 1")
	s.reopens(with, "1")
	s.pays(other, "1", "paid 2")
	s.pays(with, "1", "paid 2")
}

// A process has read the answer before the Reopen, and caches it after.
func TestAnOldAnswerIsKeptOutAfterReopen(t *testing.T) {
	s := newShop(t, once.Options{})
	late := &lateAdds{Memory: new(cachetest.Memory)}
	with, other := s.tiered(late.Memory, nil), s.tiered(late, nil)
	s.pays(with, "1", "paid 1")
	late.Wipe()
	s.pays(other, "1", "paid 1")
	if len(late.adds) != 1 {
		t.Fatalf("%d answers are on their way to the cache, want 1", len(late.adds))
	}
	s.reopens(with, "1")
	s.must(late.adds[0]())
	s.pays(other, "1", "paid 2")
}

// lateAdds is a cache that values reach late.
type lateAdds struct {
	*cachetest.Memory
	adds []func() error
}

func (l *lateAdds) Add(_ context.Context, values map[string][]byte, keep time.Duration) error {
	l.adds = append(l.adds, func() error { return l.Memory.Add(context.Background(), values, keep) })
	return nil
}

func TestReopenFailsIfTheCacheCannotBeTold(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		s := newShop(t, once.Options{})
		with := s.tiered(&broken{}, nil)
		s.pays(with, "1", "paid 1")
		rec, err := s.db.Get(t.Context(), pay.For("1").Key())
		s.must(err)
		if err := store.Reopen(t.Context(), with, rec, "ana: the wrong card"); !errors.Is(err, cachetest.ErrDown) {
			t.Errorf("Reopen returned %v", err)
		}
		s.pays(with, "1", "paid 1")
	})
}

// A process that frees a key without telling the cache is noticed within MaxAge.
func TestAReopenWithoutTheCacheTakesUpToMaxAge(t *testing.T) {
	faketime.Long(t, func(t *testing.T) {
		s := newShop(t, once.Options{})
		with := s.tiered(new(cachetest.Memory), &tiered.Options{MaxAge: time.Minute})
		s.pays(with, "1", "paid 1")
		s.reopens(s.db, "1")
		s.pays(with, "1", "paid 1") // the old answer, and no effect
		if s.runs != 1 {
			t.Errorf("work ran %d times", s.runs)
		}
		time.Sleep(time.Minute)
		s.pays(with, "1", "paid 2")
		time.Sleep(time.Second)
		s.pays(with, "1", "paid 2")
	})
}

// Nobody can make the reader of an entry panic.
func FuzzEntries(f *testing.F) {
	db, cache := memstore.New(nil), new(cachetest.Memory)
	with := tiered.New(db, cache, nil)
	if _, err := once.Do(f.Context(), with, pay.For("1"), func(context.Context, once.Key) (string, error) { return "paid", nil }); err != nil {
		f.Fatal(err)
	}
	var key string
	for k, v := range cache.Values() {
		key = k
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, entry []byte) {
		cache.Change(func(v map[string][]byte) { v[key] = tiered.Resealed(key, entry) })
		if rec, ok := with.Replay(t.Context(), pay.For("1").Key()); ok && rec.Key != pay.For("1").Key() {
			t.Errorf("an entry is the record of %v", rec.Key)
		}
	})
}
