package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

var ctx = context.Background()

func TestConformance(t *testing.T) {
	storetest.RunTx(t, harness(func(s once.TxStore[*memstore.Tx]) once.TxStore[*memstore.Tx] { return s }))
}

// All capabilities work through two wrappers.
func TestConformanceOfAWrappedStore(t *testing.T) {
	wrap := func(s once.TxStore[*memstore.Tx]) once.TxStore[*memstore.Tx] { return wrapped{wrapped{s}} }
	bare := func(s once.TxStore[*memstore.Tx]) once.TxStore[*memstore.Tx] { return s }
	if got, want := names(storetest.TxCases(t, harness(wrap))), names(storetest.TxCases(t, harness(bare))); !slices.Equal(got, want) {
		t.Errorf("through wrappers the suite has the cases %v\nwant %v", got, want)
	}
	for i, name := range names(storetest.TxCases(t, harness(wrap))) {
		t.Run(name, func(t *testing.T) {
			faketime.Test(t, func(t *testing.T) {
				if err := storetest.TxCases(t, harness(wrap))[i].Check(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// wrapped hides the capabilities of the store that it wraps.
type wrapped struct{ once.TxStore[*memstore.Tx] }

func (w wrapped) Unwrap() once.Store { return w.TxStore }

func names(cases []storetest.Case) []string {
	all := make([]string, len(cases))
	for i, c := range cases {
		all[i] = c.Name
	}
	return all
}

// harness returns a harness for an empty store in a wrapper.
func harness(wrap func(once.TxStore[*memstore.Tx]) once.TxStore[*memstore.Tx]) storetest.TxHarness[*memstore.Tx] {
	l := &ledger{store: memstore.New(nil), rows: make(map[string][]string)}
	return storetest.TxHarness[*memstore.Tx]{
		Open: func(testing.TB) once.TxStore[*memstore.Tx] {
			return wrap(&process{Store: l.store, options: once.Options{}.Ready()})
		},
		Begin:        func(context.Context) (*memstore.Tx, error) { return l.store.Begin(), nil },
		Commit:       func(_ context.Context, tx *memstore.Tx) error { return tx.Commit() },
		Rollback:     func(_ context.Context, tx *memstore.Tx) error { tx.Rollback(); return nil },
		Effect:       l.effect,
		Count:        l.count,
		SeesInFlight: true,
	}
}

// process is a store as another process has it: with the same records, and
// nothing else in common.
type process struct {
	*memstore.Store
	options *once.Options
}

func (p *process) Options() *once.Options { return p.options }

// ledger keeps rows as values of a store, each with its own name.
type ledger struct {
	store *memstore.Store

	mu   sync.Mutex
	rows map[string][]string // written ever, committed or not
}

func (l *ledger) effect(_ context.Context, tx *memstore.Tx, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	row := fmt.Sprint(name, "#", len(l.rows[name]))
	l.rows[name] = append(l.rows[name], row)
	tx.Set(row, "")
	return nil
}

func (l *ledger) count(_ context.Context, name string) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, row := range l.rows[name] {
		if _, ok := l.store.Value(row); ok {
			n++
		}
	}
	return n, nil
}

func request(id, who string) once.ClaimRequest {
	r := once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "op", ID: id}}, Lease: time.Hour}
	copy(r.Owner[:], who)
	return r
}

func done(rec once.Record) []once.Settlement {
	return []once.Settlement{{Fence: once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}, Status: once.Done,
		KeepOutcome: time.Hour, KeepKey: time.Hour}}
}

func TestClosed(t *testing.T) {
	s := memstore.New(nil)
	r, tx := request("1", "me"), s.Begin()
	tx.Set("row", "1")
	s.Close()
	s.Close()
	body := func(*memstore.Tx, []once.Record) ([]once.Settlement, error) {
		t.Error("the body was called")
		return nil, nil
	}
	for name, call := range map[string]func() error{
		"Claim":    func() error { _, err := s.Claim(ctx, r); return err },
		"Extend":   func() error { return s.Extend(ctx, r.Fence, time.Hour) },
		"Settle":   func() error { return s.Settle(ctx, once.Settlement{Fence: r.Fence}) },
		"Get":      func() error { _, err := s.Get(ctx, r.Key); return err },
		"Forget":   func() error { _, err := s.Forget(ctx, 1); return err },
		"List":     func() error { _, err := s.List(ctx, once.RecordQuery{}); return err },
		"Transact": func() error { _, err := s.Transact(ctx, []once.ClaimRequest{r}, body); return err },
		"ClaimTx":  func() error { _, err := s.ClaimTx(ctx, s.Begin(), []once.ClaimRequest{r}); return err },
		"SettleTx": func() error { return s.SettleTx(ctx, s.Begin(), nil) },
		"Commit":   tx.Commit,
	} {
		if err := call(); !errors.Is(err, once.ErrClosed) {
			t.Errorf("%s of a closed store: %v", name, err)
		}
	}
	if _, ok := s.Value("row"); ok {
		t.Error("a transaction was committed to a closed store")
	}
}

func TestForgetNeedsALimit(t *testing.T) {
	for _, limit := range []int{0, -1} {
		if _, err := memstore.New(nil).Forget(ctx, limit); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("Forget with a limit of %d: %v", limit, err)
		}
	}
}

func TestValuesBecomeVisibleWithTheCommit(t *testing.T) {
	s := memstore.New(nil)
	tx, other := s.Begin(), s.Begin()
	tx.Set("row", "1")
	if v, ok := tx.Get("row"); v != "1" || !ok {
		t.Errorf("a transaction reads %q %v of its own", v, ok)
	}
	if _, ok := other.Get("row"); ok {
		t.Error("a transaction sees what another has not committed")
	}
	if _, ok := s.Value("row"); ok {
		t.Error("a value is seen before the commit")
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if v, ok := other.Get("row"); v != "1" || !ok {
		t.Errorf("after the commit another transaction reads %q %v", v, ok)
	}
	other.Set("row", "2")
	other.Rollback()
	if v, _ := s.Value("row"); v != "1" {
		t.Errorf("after a rollback the value is %q", v)
	}
}

func TestAnEndedTransactionIsRefused(t *testing.T) {
	s := memstore.New(nil)
	committed, rolledBack, foreign := s.Begin(), s.Begin(), memstore.New(nil).Begin()
	if err := committed.Commit(); err != nil {
		t.Fatal(err)
	}
	rolledBack.Rollback()
	rolledBack.Rollback()
	for name, tx := range map[string]*memstore.Tx{"committed": committed, "rolled back": rolledBack, "foreign": foreign, "nil": nil} {
		if _, err := s.ClaimTx(ctx, tx, []once.ClaimRequest{request("1", "me")}); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("ClaimTx in a transaction that is %s: %v", name, err)
		}
		if err := s.SettleTx(ctx, tx, nil); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("SettleTx in a transaction that is %s: %v", name, err)
		}
	}
	committed.Set("row", "1")
	if err := committed.Commit(); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("a second Commit: %v", err)
	}
	if _, ok := s.Value("row"); ok {
		t.Error("a value was written by a transaction that had ended")
	}
}

// A body that could end its transaction would commit a claim without its
// settlement, or free the key while it runs.
func TestABodyCannotEndItsTransaction(t *testing.T) {
	s := memstore.New(nil)
	recs, err := s.Transact(ctx, []once.ClaimRequest{request("1", "me")}, func(tx *memstore.Tx, recs []once.Record) ([]once.Settlement, error) {
		tx.Set("row", "1")
		if err := tx.Commit(); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("Commit in a body: %v", err)
		}
		tx.Rollback()
		if _, ok := s.Value("row"); ok {
			t.Error("the body committed")
		}
		return done(recs[0]), nil
	})
	if err != nil || recs[0].Attempt != 1 {
		t.Fatal(recs, err)
	}
	if v, ok := s.Value("row"); v != "1" || !ok {
		t.Errorf("after the transaction the value is %q %v", v, ok)
	}
}

// A settlement of a record that a transaction in flight has written is a
// conflict, and not a lost lease.
func TestSettleMeetsATransactionInFlight(t *testing.T) {
	s := memstore.New(nil)
	rec, err := s.Claim(ctx, request("1", "me"))
	if err != nil {
		t.Fatal(err)
	}
	set, tx := done(rec), s.Begin()
	if err := s.SettleTx(ctx, tx, set); err != nil {
		t.Fatal(err)
	}
	if err := s.Settle(ctx, set[0]); !errors.Is(err, once.ErrConflict) {
		t.Errorf("Settle beside a transaction that settles: %v", err)
	}
	if err := s.Extend(ctx, set[0].Fence, time.Hour); !errors.Is(err, once.ErrConflict) {
		t.Errorf("Extend beside a transaction that settles: %v", err)
	}
	tx.Rollback()
	if err := s.Settle(ctx, set[0]); err != nil {
		t.Errorf("Settle after its rollback: %v", err)
	}
}

func TestOptionsHaveDefaults(t *testing.T) {
	given := &memstore.Options{Options: once.Options{MaxOutcome: 7}}
	if got := memstore.New(given).Options().MaxOutcome; got != 7 {
		t.Errorf("MaxOutcome is %d, 7 was given", got)
	}
	if o := memstore.New(nil).Options(); o.MaxOutcome <= 0 || o.Logger == nil {
		t.Errorf("without options they are %+v", o)
	}
}

// A page of 2,505 keys is bounded: it may end, and say where the next one
// begins, before it is full.
func TestPagesAreBoundedWork(t *testing.T) {
	s := memstore.New(nil)
	add := func(operation string, n int, status once.Status) {
		for i := range n {
			fence := once.Fence{Key: once.Key{Operation: operation, ID: fmt.Sprint(i)}, Owner: [16]byte{1}, Attempt: 1}
			if _, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: fence.Owner}, Lease: time.Hour}); err != nil {
				t.Fatal(err)
			}
			if err := s.Settle(t.Context(), once.Settlement{Fence: fence, Status: status, KeepOutcome: time.Hour, KeepKey: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("usual", 2500, once.Done)
	add("rare", 5, once.Unknown)
	for name, want := range map[string]struct {
		query        once.RecordQuery
		found, pages int
	}{
		"unknown":  {once.RecordQuery{Status: []once.Status{once.Unknown}}, 5, 1},
		"rare":     {once.RecordQuery{Operation: "rare"}, 5, 3},
		"parked":   {once.RecordQuery{Status: []once.Status{once.Parked, once.Done}, Operation: "rare"}, 0, 3},
		"everyone": {once.RecordQuery{Limit: 1000}, 2505, 3},
	} {
		found, pages := 0, 0
		for q := want.query; ; {
			page, err := s.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			found += len(page.Records)
			pages++
			if q.After = page.Next; q.After == (once.Key{}) {
				break
			}
		}
		if found != want.found || pages != want.pages {
			t.Errorf("%s: %d records on %d pages, want %d on %d", name, found, pages, want.found, want.pages)
		}
	}
}
