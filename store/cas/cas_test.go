package cas_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
	"github.com/effectively-once/once/store/cas/memcas"
	"github.com/effectively-once/once/store/storetest"
)

// table is an engine in memory, with the rows of its users beside those of keys.
type table struct{ *memcas.Table }

type batch = memcas.Batch

func newTable() *table { return &table{memcas.New()} }

// desk is a shop with the capabilities for consumers.
type desk struct{ cas.Consuming[*batch] }

func (*desk) Forget(ctx context.Context, limit int) (int, error) {
	return new(shop).Forget(ctx, limit)
}

func TestConformanceWithDocuments(t *testing.T) {
	at := newTable()
	h := harness(at, func(*shop) {})
	h.Open = func(testing.TB) once.TxStore[*batch] {
		return &desk{cas.Consuming[*batch]{Shelving: cas.Shelving[*batch]{Transactions: &open(at).Transactions, Docs: at, MaxDoc: 256 << 10}}}
	}
	storetest.RunTx(t, h)
}

// beside runs a function once, after the list of a shelf was read.
type beside struct {
	*table
	do func()
}

func (b *beside) LoadDoc(ctx context.Context, at cas.DocName) (cas.Doc, error) {
	is, err := b.table.LoadDoc(ctx, at)
	if do := b.do; do != nil && at.Name == "shelf/63" { // of consumer c
		b.do = nil
		do()
	}
	return is, err
}

// A message that another process takes while a page is read is not ready. With the
// Version that it has then, the reader would take it from that process.
func TestWhatWasTakenMeanwhileIsNotReady(t *testing.T) {
	at := &beside{table: newTable()}
	d := &desk{cas.Consuming[*batch]{Shelving: cas.Shelving[*batch]{Transactions: &open(at.table).Transactions, Docs: at, MaxDoc: 256 << 10}}}
	m := store.Shelved{Consumer: "c", State: store.Waiting, Message: broker.Message{ID: "1", Topic: "t"}}
	if err := d.Shelve(t.Context(), []store.Shelved{m}); err != nil {
		t.Fatal(err)
	}
	ready := store.ShelfQuery{Consumer: "c", Ready: true}
	before, err := d.Shelved(t.Context(), ready)
	if err != nil || len(before) != 1 {
		t.Fatal(before, err)
	}
	taken := false
	at.do = func() {
		taken = true
		before[0].Due = time.Hour
		if err := d.Change(t.Context(), before[0]); err != nil {
			t.Error(err)
		}
	}
	if after, err := d.Shelved(t.Context(), ready); err != nil || len(after) > 0 || !taken {
		t.Errorf("ready are %+v, %v", after, err)
	}
}

// A shelf that is full refuses messages, and keeps those that it has.
func TestAFullShelf(t *testing.T) {
	d, _ := shelving(4 << 10)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		m := store.Shelved{Consumer: "c", State: store.Parked, Message: broker.Message{ID: fmt.Sprint(n), Topic: "t"}}
		err = d.Shelve(t.Context(), []store.Shelved{m})
	}
	all, listErr := d.Shelved(t.Context(), store.ShelfQuery{Consumer: "c"})
	if !errors.Is(err, once.ErrInvalid) || !strings.Contains(err.Error(), `of "c"`) || listErr != nil || len(all) != n-1 || n < 10 {
		t.Errorf("message %d was refused with %v, and %d are on the shelf, %v", n, err, len(all), listErr)
	}
}

// A message on a full shelf is taken with a lease, and waits for a retry, as on
// another one.
func TestMessagesOfAFullShelfCanBeTaken(t *testing.T) {
	d, _ := shelving(4 << 10)
	var err error
	for n := 0; err == nil; n++ {
		m := store.Shelved{Consumer: "c", State: store.Waiting, Message: broker.Message{ID: fmt.Sprint(n), Topic: "t"}}
		err = d.Shelve(t.Context(), []store.Shelved{m})
	}
	ready, listErr := d.Shelved(t.Context(), store.ShelfQuery{Consumer: "c", Ready: true})
	if !errors.Is(err, once.ErrInvalid) || listErr != nil || len(ready) < 10 {
		t.Fatalf("the shelf was full with %v, and %d are ready, %v", err, len(ready), listErr)
	}
	for _, m := range ready {
		m.Due = 365 * 24 * time.Hour
		if err := d.Change(t.Context(), m); err != nil {
			t.Fatalf("message %d cannot be taken: %v", m.Seq, err)
		}
	}
}

// An earlier build writes the list with the fields that it knows, for messages
// that it does not change as well.
func TestAnEarlierBuildMayWriteTheList(t *testing.T) {
	d, at := shelving(256 << 10)
	m := store.Shelved{Consumer: "c", State: store.Waiting, Due: time.Microsecond, Message: broker.Message{ID: "1", Topic: "t"}}
	if err := d.Shelve(t.Context(), []store.Shelved{m}); err != nil {
		t.Fatal(err)
	}
	var known []struct {
		Seq          int64
		ID           string
		Order, Topic string `json:",omitempty"`
		State        store.ShelfState
		Due, Updated cas.Instant
	}
	list := at.Docs[listOfC]
	if err := json.Unmarshal(list.Text, &known); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(known)
	if err != nil {
		t.Fatal(err)
	}
	at.Docs[listOfC] = cas.Doc{Text: text, Version: list.Version}
	for time.Now().UnixMicro() <= int64(known[0].Due) {
	}
	ready, err := d.Shelved(t.Context(), store.ShelfQuery{Consumer: "c", Ready: true})
	if err != nil || len(ready) != 1 {
		t.Errorf("ready are %+v, %v", ready, err)
	}
}

// listOfC is the list of the messages of consumer c.
var listOfC = cas.DocName{Name: "shelf/63"}

func shelving(maxDoc int) (*desk, *table) {
	at := newTable()
	return &desk{cas.Consuming[*batch]{Shelving: cas.Shelving[*batch]{Transactions: &open(at).Transactions, Docs: at, MaxDoc: maxDoc}}}, at
}

// shop is a store as an adapter makes it.
type shop struct {
	cas.Transactions[*batch]
}

func (*shop) Forget(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, once.ErrInvalid
	}
	return 0, ctx.Err()
}

func open(t *table) *shop {
	return &shop{cas.Transactions[*batch]{Store: cas.New(t, t, once.Options{}.Ready()), Engine: t}}
}

func harness(t *table, prepare func(*shop)) storetest.TxHarness[*batch] {
	return storetest.TxHarness[*batch]{
		Open: func(testing.TB) once.TxStore[*batch] {
			s := open(t)
			prepare(s)
			return s
		},
		NoList:   true,
		Batched:  true,
		Expires:  true,
		Begin:    func(context.Context) (*batch, error) { return t.Begin(), nil },
		Commit:   func(ctx context.Context, tx *batch) error { return t.Commit(ctx, tx) },
		Rollback: func(_ context.Context, tx *batch) error { t.Rollback(tx); return nil },
		Effect: func(_ context.Context, tx *batch, name string) error {
			tx.Effects = append(tx.Effects, name)
			return nil
		},
		Count: func(_ context.Context, name string) (int, error) {
			t.Mu.Lock()
			defer t.Mu.Unlock()
			return t.Effects[name], nil
		},
	}
}

func TestConformance(t *testing.T) {
	storetest.RunTx(t, harness(newTable(), func(*shop) {}))
}

func TestConformanceIfRefusalsAreSilent(t *testing.T) {
	silent := newTable()
	silent.Silent = true
	storetest.RunTx(t, harness(silent, func(*shop) {}))
}

func TestConformanceIfClaimsAreWrittenFirst(t *testing.T) {
	h := harness(newTable(), func(s *shop) { s.ClaimFirst = true })
	h.ClaimsFirst = true
	storetest.RunTx(t, h)
}

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

// A transaction whose process dies after a firm claim did nothing, so its key is
// free again, and not unknown.
func TestAFirmClaimThatLapsesIsFree(t *testing.T) {
	at := newTable()
	s := open(at)
	now := cas.Instant(time.Now().Add(-time.Hour).UnixMicro())
	key := pay.For("1").Key()
	row := cas.Row{Key: key, Status: once.Running, Attempt: 3, Owner: [16]byte{1}, Created: now, Updated: now, Lease: now,
		KeepKey: now + cas.Instant(24*time.Hour/time.Microsecond), Firm: true}
	if _, err := at.Put(t.Context(), row, ""); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.Get(t.Context(), key); err != nil || rec.Status != once.Absent || rec.Attempt != 3 {
		t.Errorf("Get returned %+v, %v", rec, err)
	}
	var how once.Report
	got, err := once.DoTx(t.Context(), s, pay.For("1").Report(&how), func(context.Context, *batch) (string, error) { return "paid", nil })
	if err != nil || got != "paid" || how.Attempt != 4 {
		t.Errorf("DoTx returned %q, %v in attempt %d", got, err, how.Attempt)
	}
}

// A transaction takes over an attempt whose outcome is unknown, and its process
// dies: what the attempt did is as unknown as before.
func TestAFirmTakeoverThatLapsesStaysUnknown(t *testing.T) {
	for _, ends := range []string{"it dies", "it rolls back"} {
		at := newTable()
		s := open(at)
		now := cas.Instant(time.Now().Add(-time.Hour).UnixMicro())
		key := pay.For("1").Key()
		row := cas.Row{Key: key, Status: once.Unknown, Attempt: 1, Owner: [16]byte{1}, Created: now, Updated: now, Lease: now}
		if _, err := at.Put(t.Context(), row, ""); err != nil {
			t.Fatal(err)
		}
		r := once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{2}, Attempt: 1}, Lease: time.Hour, Firm: true}
		_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, func(_ *batch, recs []once.Record) ([]once.Settlement, error) {
			if recs[0].Attempt != 2 {
				t.Errorf("the takeover has attempt %d", recs[0].Attempt)
			}
			if ends == "it dies" {
				is := at.Rows[key.UUID()]
				is.Lease = now
				at.Write(is.Row) // with a new version, so that nothing is rolled back
			}
			return nil, errors.New("no")
		})
		if err == nil {
			t.Error("Transact returned nil")
		}
		if rec, err := s.Get(t.Context(), key); err != nil || rec.Status != once.Unknown {
			t.Errorf("after %s, Get returned %+v, %v", ends, rec, err)
		}
	}
}

// A body need not settle its claim. It must still be current at the commit, and
// is then a claim like others.
func TestAClaimThatIsNotSettledIsCurrentAtTheCommit(t *testing.T) {
	for name, r := range map[string]once.ClaimRequest{"firm": {Firm: true}, "held already": {}} {
		for _, overtaken := range []bool{false, true} {
			at := newTable()
			s := open(at)
			r.Fence, r.Lease = once.Fence{Key: pay.For("1").Key(), Owner: [16]byte{1}}, time.Hour
			if !r.Firm {
				if _, err := s.Claim(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, func(tx *batch, _ []once.Record) ([]once.Settlement, error) {
				tx.Effects = append(tx.Effects, "row")
				if overtaken {
					is := at.Rows[r.Key.UUID()]
					is.Owner, is.Attempt = [16]byte{2}, 2
					at.Write(is.Row)
				}
				return nil, nil
			})
			if overtaken != errors.Is(err, once.ErrConflict) || overtaken == (at.Effects["row"] == 1) {
				t.Errorf("%s, overtaken %t: Transact returned %v with %d effects", name, overtaken, err, at.Effects["row"])
			}
			if is := at.Rows[r.Key.UUID()]; !overtaken && (is.Status != once.Running || is.Firm) {
				t.Errorf("%s: the row is %+v", name, is.Row)
			}
		}
	}
}

// lossy loses the reply to a commit, or delays the commit until it is told.
type lossy struct {
	*table
	commits int
	fault   func(n int, commit func() error) error
}

func (l *lossy) Commit(ctx context.Context, tx *batch) error {
	l.commits++
	return l.fault(l.commits, func() error { return l.table.Commit(ctx, tx) })
}

// Commits arrive while a later run is at work. Whatever happens, what the caller
// learns is what took place.
func TestALateCommitIsRefused(t *testing.T) {
	for _, lost := range []int{1, 2} {
		for _, fails := range []bool{false, true} {
			lateCommits(t, lost, fails)
		}
	}
}

func lateCommits(t *testing.T, lost int, fails bool) {
	l := &lossy{table: newTable()}
	var late []func() error
	l.fault = func(n int, commit func() error) error {
		if n > lost {
			return commit()
		}
		late = append(late, commit)
		return once.ErrOutcomeUnknown
	}
	s := &shop{cas.Transactions[*batch]{Store: cas.New(l, l, once.Options{}.Ready()), Engine: l}}
	no, runs := errors.New("out of stock"), 0
	got, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *batch) (string, error) {
		tx.Effects = append(tx.Effects, "row")
		if runs++; runs > lost {
			for i, commit := range late {
				if err := commit(); !errors.Is(err, once.ErrConflict) {
					t.Errorf("commit %d of %d, which is late, returned %v", i+1, lost, err)
				}
			}
			if fails {
				return "", no
			}
		}
		return fmt.Sprint("run ", runs), nil
	})
	switch want := fmt.Sprint("run ", lost+1); {
	case fails && (!errors.Is(err, no) || l.Effects["row"] != 0), !fails && (err != nil || got != want || l.Effects["row"] != 1):
		t.Errorf("after %d lost commits, DoTx returned %q, %v with %d effects", lost, got, err, l.Effects["row"])
	}
}

// The commit was applied before the second transaction begins.
func TestALostReplyIsRecognised(t *testing.T) {
	l := &lossy{table: newTable()}
	l.fault = func(n int, commit func() error) error {
		if err := commit(); err != nil || n > 1 {
			return err
		}
		return once.ErrOutcomeUnknown
	}
	s := &shop{cas.Transactions[*batch]{Store: cas.New(l, l, once.Options{}.Ready()), Engine: l}}
	runs := 0
	got, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *batch) (string, error) {
		runs++
		tx.Effects = append(tx.Effects, "row")
		return fmt.Sprint("run ", runs), nil
	})
	if err != nil || got != "run 1" || runs != 1 || l.Effects["row"] != 1 {
		t.Errorf("DoTx returned %q, %v after %d runs with %d effects", got, err, runs, l.Effects["row"])
	}
}

// vague is a clock that is known up to an hour.
type vague struct{ at cas.Instant }

func (v *vague) Now(context.Context) (cas.Now, error) {
	return cas.Between(v.at, v.at+cas.Instant(time.Hour/time.Microsecond)), nil
}

// Whichever time within the interval is the true one, nobody takes a lease early.
func TestALeaseIsNeverShorter(t *testing.T) {
	clock, minute := new(vague), cas.Instant(time.Minute/time.Microsecond)
	clock.at = cas.Instant(time.Now().UnixMicro())
	s := cas.New(newTable(), clock, once.Options{}.Ready())
	r := once.ClaimRequest{Fence: once.Fence{Key: pay.For("1").Key(), Owner: [16]byte{1}, Attempt: 1}, Lease: time.Minute}
	if _, err := s.Claim(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	latest := clock.at + 60*minute // when the claim was made, at the latest
	for _, c := range []struct {
		now    cas.Instant
		status once.Status
	}{{latest, once.Running}, {latest + minute - 1, once.Running}, {latest + minute, once.Unknown}} {
		clock.at = c.now
		if rec, err := s.Get(t.Context(), r.Key); err != nil || rec.Status != c.status {
			t.Errorf("Get returned %v, %v, not %v", rec.Status, err, c.status)
		}
		clock.at = c.now - 60*minute // it is now at the latest
		if rec, err := s.Get(t.Context(), r.Key); err != nil || rec.Status != once.Running {
			t.Errorf("at a time that may be earlier, Get returned %v, %v", rec.Status, err)
		}
	}
}

// A speculative transaction for a new key sends nothing but its commit.
func TestSpeculationReadsNothing(t *testing.T) {
	l := &lossy{table: newTable(), fault: func(_ int, commit func() error) error { return commit() }}
	counted := &loads{lossy: l}
	s := &shop{cas.Transactions[*batch]{Store: cas.New(counted, l, once.Options{}.Ready()), Engine: counted}}
	quick := *pay
	quick.Speculative = true
	if _, err := once.DoTx(t.Context(), s, quick.For("1"), func(context.Context, *batch) (string, error) { return "paid", nil }); err != nil {
		t.Fatal(err)
	}
	if counted.n != 0 || l.commits != 1 {
		t.Errorf("it made %d reads and %d commits", counted.n, l.commits)
	}
}

type loads struct {
	*lossy
	n int
}

func (l *loads) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	l.n++
	return l.lossy.Load(ctx, k)
}

// A claim and its settlement are two writes, and no read. If others have written
// the row meanwhile, it is read.
func TestOwnRowsAreNotRead(t *testing.T) {
	at := newTable()
	counted := &loads{lossy: &lossy{table: at}}
	s := &shop{cas.Transactions[*batch]{Store: cas.New(counted, at, once.Options{}.Ready()), Engine: counted}}
	fence := once.Fence{Key: pay.For("1").Key(), Owner: [16]byte{1}}
	claim := func() {
		rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		fence.Attempt = rec.Attempt
	}
	claim()
	set := once.Settlement{Fence: fence, Status: once.Absent, KeepKey: time.Hour}
	set.Attempt = fence.Attempt
	for _, call := range []func() error{
		func() error { return s.Extend(t.Context(), fence, time.Hour) },
		func() error { return s.Extend(t.Context(), fence, time.Hour) },
		func() error { return s.Settle(t.Context(), set) },
	} {
		if err := call(); err != nil || counted.n != 0 {
			t.Errorf("it returned %v after %d reads", err, counted.n)
		}
	}
	fence.Owner = [16]byte{2}
	claim()
	parked := once.Settlement{Fence: fence, Status: once.Parked}
	if err := open(at).Settle(t.Context(), parked); err != nil { // another process
		t.Fatal(err)
	}
	if err := s.Extend(t.Context(), fence, time.Hour); !errors.Is(err, once.ErrLeaseLost) {
		t.Errorf("Extend of a parked key returned %v", err)
	}
	if err := s.Settle(t.Context(), parked); err != nil {
		t.Errorf("Settle of a parked key returned %v", err)
	}
	if rec, err := s.Get(t.Context(), fence.Key); err != nil || rec.Status != once.Parked {
		t.Errorf("the record is %v, %v", rec, err)
	}
}

// puts counts the writes of an engine, and those that it refuses.
type puts struct {
	*loads
	n int
}

func (p *puts) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	p.n++
	return p.loads.Put(ctx, row, over)
}

// If refused writes tell nothing, claims look first while many of them meet
// duplicates, and not while most keys are new.
func TestClaimsLookFirstWhileManyAreDuplicates(t *testing.T) {
	for _, silent := range []bool{true, false} {
		at := newTable()
		at.Silent = silent
		counted := &puts{loads: &loads{lossy: &lossy{table: at}}}
		s := cas.New(counted, at, once.Options{}.Ready())
		claim := func(id string) (loads, puts int) {
			counted.loads.n, counted.n = 0, 0
			_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: pay.For(id).Key(), Owner: [16]byte(fmt.Appendf(nil, "%16d", at.Versions))},
				Lease: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			return counted.loads.n, counted.n
		}
		if loads, puts := claim("first"); loads != 0 || puts != 1 {
			t.Errorf("the first claim makes %d reads and %d writes", loads, puts)
		}
		for range 20 {
			claim("first")
		}
		loads, puts := claim("first")
		if silent && (loads != 1 || puts != 0) || !silent && (loads != 0 || puts != 1) {
			t.Errorf("silent %v: a duplicate after many makes %d reads and %d writes", silent, loads, puts)
		}
		for i := range 60 {
			claim(fmt.Sprint("new", i))
		}
		if loads, puts := claim("newer"); loads != 0 || puts != 1 {
			t.Errorf("silent %v: a new key after many makes %d reads and %d writes", silent, loads, puts)
		}
	}
}

// A claim that runs is not deleted, however often it is extended.
func TestAnExtendedFirmClaimIsKept(t *testing.T) {
	at := newTable()
	s := open(at)
	r := once.ClaimRequest{Fence: once.Fence{Key: pay.For("1").Key(), Owner: [16]byte{1}}, Lease: time.Minute, Firm: true}
	r.Expected = &once.Settlement{Status: once.Done, KeepKey: time.Hour}
	_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, func(_ *batch, recs []once.Record) ([]once.Settlement, error) {
		fence := once.Fence{Key: r.Key, Owner: r.Owner, Attempt: recs[0].Attempt}
		if err := s.Extend(t.Context(), fence, 3*time.Hour); err != nil {
			t.Error(err)
		}
		is := at.Rows[r.Key.UUID()]
		if ends, expires := is.Expires(); !is.Firm || expires && ends < is.Lease+cas.Instant(59*time.Minute/time.Microsecond) {
			t.Errorf("it ends at %v, and may be deleted at %v", is.Lease.Time(), ends.Time())
		}
		return nil, errors.New("no")
	})
	if err == nil {
		t.Error("Transact returned nil")
	}
}

// What the work of a speculative transaction returns is not wrapped if the key
// turns out to be free.
func TestSpeculationReturnsTheErrorOfTheWork(t *testing.T) {
	no := errors.New("out of stock")
	quick := *pay
	quick.Speculative = true
	_, err := once.DoTx(t.Context(), open(newTable()), quick.For("1"), func(context.Context, *batch) (string, error) { return "", no })
	if err != no {
		t.Errorf("DoTx returned %#v", err)
	}
}

func (*table) PlaceOf(*batch) (string, error) { return "", nil }

func (t *table) Queued(ctx context.Context, prefix, after string, limit int) (page []cas.NamedDoc, err error) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	for at, doc := range t.Docs {
		if strings.HasPrefix(at.Name, prefix) && at.Name > after {
			doc.Text = bytes.Clone(doc.Text)
			page = append(page, cas.NamedDoc{DocName: at, Doc: doc})
		}
	}
	slices.SortFunc(page, func(a, b cas.NamedDoc) int { return strings.Compare(a.Name, b.Name) })
	return page[:min(len(page), limit)], ctx.Err()
}

func (t *table) Move(ctx context.Context, moves []cas.Move) (made []bool, err error) {
	t.Mu.Lock()
	defer t.Mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, m := range moves {
		to := cas.DocName{Place: m.Place, Name: m.To}
		is, exists := t.Docs[m.DocName]
		_, taken := t.Docs[to]
		ok := exists && (m.Over == "" || m.Over == is.Version) && (m.To == "" || m.To == m.Name || !taken)
		if made = append(made, ok); !ok {
			continue
		}
		delete(t.Docs, m.DocName)
		if m.To != "" {
			t.Versions++
			t.Docs[to] = cas.Doc{Text: m.Is, Version: strconv.Itoa(t.Versions)}
		}
	}
	return made, nil
}

// press is a desk with an outbox.
type press struct {
	desk
	*cas.Publishing[*batch]
}

func (p *press) Options() *once.Options { return p.desk.Options() }

func openPress(t *table) *press {
	transactions := &open(t).Transactions
	return &press{
		desk:       desk{cas.Consuming[*batch]{Shelving: cas.Shelving[*batch]{Transactions: transactions, Docs: t, MaxDoc: 8 << 20}}},
		Publishing: &cas.Publishing[*batch]{Transactions: transactions, Queue: t, MaxDoc: 8 << 20},
	}
}

func TestConformanceWithAnOutbox(t *testing.T) {
	at := newTable()
	h := harness(at, func(*shop) {})
	h.Slow = true
	h.Open = func(testing.TB) once.TxStore[*batch] { return openPress(at) }
	storetest.RunTx(t, h)
}
