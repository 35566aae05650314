package crosscheck_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/crosscheck"
	"github.com/effectively-once/once/store/memstore"
)

var pay = once.Key{Operation: "pay"}

// record is a record of a test.
type record struct {
	status  once.Status // Absent: it was released
	outcome once.Outcome
}

// put makes a record of a key.
func put(t testing.TB, s once.Store, k once.Key, r record) {
	t.Helper()
	got, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: k, Owner: [16]byte{1}}, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if r.status == once.Running {
		return
	}
	set := once.Settlement{Fence: once.Fence{Key: k, Owner: got.Owner, Attempt: got.Attempt}, Status: r.status, Reason: "a test",
		KeepOutcome: time.Hour, KeepKey: time.Hour}
	if set.Status == once.Expired {
		set.Status, set.KeepOutcome = once.Done, time.Nanosecond
	}
	if set.Status == once.Done {
		set.Outcome, _ = s.Options().Pack(k, nil, r.outcome)
	}
	if err := s.Settle(t.Context(), set); err != nil {
		t.Fatal(err)
	}
}

func amount(text string) once.Outcome {
	return once.Outcome{Body: []byte(`{"amount":` + text + `}`), ContentType: "application/json"}
}

func read(t testing.TB, f crosscheck.Format, text string) *crosscheck.Report {
	t.Helper()
	r, err := crosscheck.Read(t.Context(), strings.NewReader(text), f, pay)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func run(t testing.TB, c crosscheck.Comparison) (all []crosscheck.Finding, s crosscheck.Summary) {
	t.Helper()
	s, err := c.Run(t.Context(), func(f crosscheck.Finding) error { all = append(all, f); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return all, s
}

func TestEachKindIsFound(t *testing.T) {
	s := memstore.New(nil)
	for id, r := range map[string]record{
		"twice": {once.Done, amount("1")}, "rejected": {once.Done, once.Outcome{Rejected: true, Omitted: true}}, "free": {status: once.Absent},
		"unknown": {status: once.Unknown}, "parked": {status: once.Parked}, "running": {status: once.Running},
		"failed": {once.Done, amount("1")}, "pending": {status: once.Unknown}, "refused": {once.Done, once.Outcome{Rejected: true, Omitted: true}},
		"missing": {once.Done, amount("1")}, "lost": {status: once.Unknown}, "at work": {status: once.Running},
		"more": {once.Done, amount("1.01")}, "hidden": {once.Done, once.Outcome{Omitted: true}}, "text": {once.Done, amount(`"one"`)},
		"same": {once.Done, amount("1e0")}, "forgotten": {status: once.Expired},
	} {
		put(t, s, once.Key{Operation: "pay", ID: id}, r)
	}
	put(t, s, once.Key{Operation: "mail", ID: "another operation"}, record{status: once.Unknown})
	put(t, s, once.Key{Operation: "pay", Scope: "s", ID: "another scope"}, record{status: once.Unknown})
	report := read(t, crosscheck.Format{ID: "order", Status: "state", Happened: []string{"paid", "settled"}, Amount: "amount"}, `state,order,amount
paid,twice,1
paid,rejected,1
paid,nobody,1
paid,free,1
paid,unknown,1
paid,parked,1
paid,running,1
failed,failed,1
pending,pending,1
failed,refused,1
failed,more,9
paid,more,1
paid,hidden,1
paid,text,1
settled,twice,1
paid,same,01.00
paid,forgotten,1
failed,no such key,1
`)
	found, summary := run(t, crosscheck.Comparison{Store: s, Report: report, Amount: "/amount"})
	want := map[string]string{
		"twice": "happened_twice [2 16] none", "rejected": "rejected_here [3] none", "nobody": "not_here [4] none", "free": "not_here [5] none",
		"unknown": "open_here [6] done", "parked": "open_here [7] done", "running": "open_here [8] none", "failed": "not_there [9] none",
		"pending": "open_not_there [10] none", "missing": "not_there [] none", "lost": "open_not_there [] none",
		"more": "differs [13] none", "hidden": "not_comparable [14] none", "text": "not_comparable [15] none",
		"forgotten": "not_comparable [18] none",
	}
	for i, f := range found {
		is := fmt.Sprintf("%v %v %s", f.Kind, f.Lines, [...]string{"none", "done", "not done"}[f.Supports])
		if want[f.Key.ID] != is {
			t.Errorf("%s: %s, want %q", f.Key.ID, is, want[f.Key.ID])
		}
		delete(want, f.Key.ID)
		if (i == 0) != (f.Kind == crosscheck.HappenedTwice) {
			t.Errorf("finding %d is %v", i, f.Kind)
		}
		if f.Travel != f.Key.String() || len(f.Lines) > 0 && !json.Valid(f.Line) {
			t.Errorf("%s travels as %s, in the line %s", f.Key.ID, f.Travel, f.Line)
		}
		if f.Key.ID == "more" && (f.Theirs != "1" || f.Ours != "1.01" || string(f.Line) != `{"state":"paid","order":"more","amount":"1"}`) {
			t.Errorf("%+v", f)
		}
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
	if n := summary.Counts; n[crosscheck.Agrees] != 3 || n[crosscheck.Undecided] != 1 || summary.OnlyOpen || !summary.Disagrees() {
		t.Errorf("%+v", summary)
	}
}

// A second charge hides in a status that somebody forgot to name, or has written
// another way.
func TestStatusesThatDidNotHappenAreTold(t *testing.T) {
	f := crosscheck.Format{ID: "order", Status: "state", Happened: []string{"paid"}}
	for _, text := range []string{"order,state\na,paid\na,Paid\n", "order,state\na,paid\na,paid \n", `{"order":"a","state":"PAID"}`} {
		_, err := crosscheck.Read(t.Context(), strings.NewReader(text), f, pay)
		if err == nil || !strings.Contains(err.Error(), `and "paid" means that it happened`) {
			t.Errorf("%q: %v", text, err)
		}
	}
	r := read(t, f, "order,state\na,paid\na,captured\nb,failed\nc,failed\nd,\n")
	if want := map[string]int{"captured": 1, "failed": 2, "": 1}; !maps.Equal(r.NotHappened, want) {
		t.Errorf("%v, want %v", r.NotHappened, want)
	}
	var many strings.Builder
	for i := range 300 {
		fmt.Fprintf(&many, "%d,state %d\n", i, i)
	}
	if r = read(t, f, "order,state\n"+many.String()); len(r.NotHappened) != 101 || r.NotHappened["…"] != 200 {
		t.Errorf("%d statuses, %d others", len(r.NotHappened), r.NotHappened["…"])
	}
}

// What is left of order-4711 may be the ID of another order.
func TestALineThatMayHaveBeenCutOffSupportsNothing(t *testing.T) {
	s := memstore.New(nil)
	put(t, s, once.Key{Operation: "pay", ID: "order-1"}, record{status: once.Unknown})
	put(t, s, once.Key{Operation: "pay", ID: "order-47"}, record{status: once.Unknown})
	for text, cut := range map[string]bool{"amount,id\n1,order-1\n2,order-47": true, "amount,id\n1,order-1\n2,order-47\n": false,
		"amount,id\n1,order-1\n2,\"order-47\"": false, "{\"id\":\"order-1\"}\n{\"id\":\"order-47\"}": false} {
		r := read(t, crosscheck.Format{ID: "id"}, text)
		c := crosscheck.Comparison{Store: s, Report: r, Since: time.Unix(1, 0), Until: time.Now().Add(time.Hour)}
		found, summary := run(t, c)
		if len(found) != 2 || r.Cut != cut || (found[1].Supports == crosscheck.None) != cut || found[0].Supports != crosscheck.MarkDone {
			t.Errorf("%q: Cut is %v, %+v", text, r.Cut, found)
		}
		if err := c.MayFree(summary); (err != nil) != cut {
			t.Errorf("%q: MayFree returns %v", text, err)
		}
	}
}

// TestComparisonIsThatOfAModel compares random reports with random records, and
// with a model that has them in maps.
func TestComparisonIsThatOfAModel(t *testing.T) {
	statuses := []once.Status{once.Absent, once.Running, once.Unknown, once.Parked, once.Done, once.Done, once.Done, once.Expired}
	amounts := []string{"0", "1", "1.0", "1.5", "-1", "10", "1e1", "150", "0.00"}
	type entry struct {
		id, status, amount string
	}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		s, records := memstore.New(nil), make(map[string]record)
		for i := range 12 {
			if random.IntN(3) == 0 {
				continue
			}
			r := record{status: statuses[random.IntN(len(statuses))]}
			if r.status == once.Done {
				r.outcome = amount(amounts[random.IntN(len(amounts))])
				r.outcome.Rejected = random.IntN(5) == 0
			}
			id := fmt.Sprint("id,", i)
			records[id] = r
			put(t, s, once.Key{Operation: "pay", ID: id}, r)
		}
		withStatus, withAmount := random.IntN(2) == 0, random.IntN(2) == 0
		var report []entry
		for range random.IntN(20) {
			e := entry{fmt.Sprint("id,", random.IntN(12)), []string{"paid", "failed"}[random.IntN(2)], amounts[random.IntN(len(amounts))]}
			if !withStatus {
				e.status = "paid"
			}
			report = append(report, e)
		}

		want, byID := make(map[string]crosscheck.Kind), make(map[string][]entry)
		for _, e := range report {
			byID[e.id] = append(byID[e.id], e)
		}
		for i := range 12 {
			id := fmt.Sprint("id,", i)
			r, known := records[id]
			var paid []entry
			for _, e := range byID[id] {
				if e.status == "paid" {
					paid = append(paid, e)
				}
			}
			isDone := r.status == once.Done && !r.outcome.Rejected || r.status == once.Expired
			isOpen := r.status == once.Unknown || r.status == once.Parked
			kind := crosscheck.Agrees
			switch {
			case len(byID[id]) == 0 && (!known || r.status == once.Absent):
				continue
			case len(paid) > 1:
				kind = crosscheck.HappenedTwice
			case len(paid) == 0 && r.status == once.Running:
				kind = crosscheck.Undecided
			case len(paid) == 0 && isDone:
				kind = crosscheck.NotThere
			case len(paid) == 0 && isOpen:
				kind = crosscheck.OpenNotThere
			case len(paid) == 0:
			case !known || r.status == once.Absent:
				kind = crosscheck.NotHere
			case isOpen || r.status == once.Running:
				kind = crosscheck.OpenHere
			case r.status == once.Done && r.outcome.Rejected:
				kind = crosscheck.RejectedHere
			case !withAmount:
			case r.status == once.Expired:
				kind = crosscheck.NotComparable
			default:
				ours, _ := new(big.Rat).SetString(strings.TrimSuffix(strings.TrimPrefix(string(r.outcome.Body), `{"amount":`), "}"))
				theirs, _ := new(big.Rat).SetString(paid[0].amount)
				if ours.Cmp(theirs) != 0 {
					kind = crosscheck.Differs
				}
			}
			want[id] = kind
		}

		var text bytes.Buffer
		lines := csv.NewWriter(&text)
		if seed%2 == 0 {
			lines.Write([]string{"amount", "id", "state"})
		}
		for _, e := range report {
			if seed%2 == 1 {
				fmt.Fprintf(&text, `{"id": %q, "deep": {"amount": %s}, "state": %q}`+"\n", e.id, e.amount, e.status)
			} else {
				lines.Write([]string{e.amount, e.id, e.status})
			}
		}
		lines.Flush()
		if text.Len() == 0 {
			continue // which is no report
		}
		f, c := crosscheck.Format{}, crosscheck.Comparison{Store: s}
		if seed%3 == 0 {
			c.Store = together{s}
		}
		if withStatus {
			f.Status, f.Happened = "state", []string{"paid"}
		}
		if withAmount {
			f.Amount, c.Amount = map[bool]string{true: "/deep/amount", false: "amount"}[seed%2 == 1], "/amount"
		}
		c.Report = read(t, f, text.String())
		found, summary := run(t, c)
		var counts [len(summary.Counts)]int
		for _, kind := range want {
			counts[kind]++
		}
		for _, f := range found {
			if want[f.Key.ID] != f.Kind {
				t.Errorf("seed %d: %s is %v, want %v", seed, f.Key.ID, f.Kind, want[f.Key.ID])
			}
			delete(want, f.Key.ID)
		}
		if counts != summary.Counts {
			t.Errorf("seed %d: counted %v, want %v", seed, summary.Counts, counts)
		}
		for id, kind := range want {
			if kind.Disagrees() {
				t.Errorf("seed %d: %s is %v and was not found in\n%s", seed, id, kind, &text)
			}
		}
		if t.Failed() {
			t.Fatalf("%+v\n%s", records, &text)
		}
	}
}

// together is a store that reads several records at once.
type together struct{ *memstore.Store }

func (s together) GetMany(ctx context.Context, keys []once.Key) (recs []once.Record, err error) {
	for _, k := range keys {
		rec, err := s.Store.Get(ctx, k)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

// Get fails the test: it is not asked for single records.
func (s together) Get(context.Context, once.Key) (once.Record, error) {
	return once.Record{}, errors.New("a record was read alone")
}

// Unwrap returns the store.
func (s together) Unwrap() once.Store { return s.Store }

func TestAmountsAreCompared(t *testing.T) {
	for _, test := range []struct {
		theirs, ours string
		decimals     int
		comma        bool
		want         crosscheck.Kind
	}{
		{"12.50", "12.5", 0, false, crosscheck.Agrees},
		{"012.500", `"12.50"`, 0, false, crosscheck.Agrees},
		{"12.50", "1250", 2, false, crosscheck.Agrees},
		{"12.50", "1250", 0, false, crosscheck.Differs},
		{"0.1", "0.10000000000000000001", 0, false, crosscheck.Differs}, // equal as floats
		{"9007199254740993", "9007199254740992", 0, false, crosscheck.Differs},
		{"-0", "0", 2, false, crosscheck.Agrees},
		{"+1", "1E0", 0, false, crosscheck.Agrees},
		{"-1", "1", 0, false, crosscheck.Differs},
		{"12,5", "12.50", 0, true, crosscheck.Agrees},
		{"", "1", 0, false, crosscheck.NotComparable},
		{"1", "null", 0, false, crosscheck.NotComparable},
	} {
		s := memstore.New(nil)
		put(t, s, once.Key{Operation: "pay", ID: "1"}, record{once.Done, amount(test.ours)})
		report := read(t, crosscheck.Format{Delimiter: ';', Amount: "a", DecimalComma: test.comma}, "id;a\n1;"+test.theirs+"\n")
		_, summary := run(t, crosscheck.Comparison{Store: s, Report: report, Amount: "/amount", Decimals: test.decimals})
		if summary.Counts[test.want] != 1 {
			t.Errorf("%s and %s: %+v", test.theirs, test.ours, summary)
		}
	}

	s := memstore.New(nil)
	put(t, s, once.Key{Operation: "pay", ID: "1"}, record{once.Done, once.Outcome{ContentType: "application/json",
		Body: []byte(`{"paid":[{"a/b":"10.0","currency":"eur"}]}`)}})
	f := crosscheck.Format{Amount: "amount", Currency: "currency"}
	c := crosscheck.Comparison{Store: s, Amount: "/paid/0/a~1b", Currency: "/paid/0/currency", Report: read(t, f, "id,amount,currency\n1,10,EUR\n")}
	if _, summary := run(t, c); summary.Counts[crosscheck.Agrees] != 1 {
		t.Errorf("%+v", summary)
	}
	c.Report = read(t, f, "id,amount,currency\n1,10,USD\n")
	if found, _ := run(t, c); len(found) != 1 || found[0].Theirs != "10 USD" || found[0].Ours != "10.0 eur" {
		t.Errorf("%+v", found)
	}
}

func TestAmountsInMinorUnitsAreShownAsTheReportHasThem(t *testing.T) {
	for _, test := range []struct {
		ours     string
		decimals int
		want     string
	}{
		{"1007", 2, "10.07"}, {"-7", 2, "-0.07"}, {"7", 3, "0.007"}, {"100", 0, "100"}, {"0", 2, "0.00"}, {`"+250"`, 1, "+25.0"},
		{"10.5", 2, "10.5"}, {"1e3", 2, "1e3"}, {"12", 1 << 40, "12"},
	} {
		s := memstore.New(nil)
		put(t, s, once.Key{Operation: "pay", ID: "1"}, record{once.Done, amount(test.ours)})
		report := read(t, crosscheck.Format{Amount: "a"}, "id,a\n1,999999\n")
		found, _ := run(t, crosscheck.Comparison{Store: s, Report: report, Amount: "/amount", Decimals: test.decimals})
		if len(found) != 1 || found[0].Ours != test.want {
			t.Errorf("%s with %d decimals: %+v", test.ours, test.decimals, found)
		}
	}
}

func TestKeysAreFoundAsTheyTravel(t *testing.T) {
	s := memstore.New(nil)
	in := once.Key{Scope: "tenant 7", Operation: "pay", ID: "1"}
	other := once.Key{Operation: "mail", ID: "1"}
	lost := once.Key{Operation: "pay", ID: "2"}
	for _, k := range []once.Key{in, other} {
		put(t, s, k, record{status: once.Unknown})
	}
	text := "key\n" + strings.ToUpper(in.String()) + "\n" + other.String() + "\n" + lost.String() + "\n"
	c := crosscheck.Comparison{Store: s, Report: read(t, crosscheck.Format{Key: "key"}, text), AnyScope: true}
	found, summary := run(t, c)
	if len(found) != 2 || found[0].Key != in || found[0].Kind != crosscheck.OpenHere || found[1].Kind != crosscheck.NotHere ||
		found[1].Travel != lost.String() || summary.Others != 1 {
		t.Errorf("%+v, %+v", found, summary)
	}
	if c.AnyScope = false; true {
		if _, summary := run(t, c); summary.Others != 2 {
			t.Errorf("the scope was ignored: %+v", summary)
		}
	}
}

// onlyOpen is a store that lists as those without an index of all records do.
type onlyOpen struct{ *memstore.Store }

func (s onlyOpen) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	if q.UUID == [16]byte{} && (len(q.Status) == 0 || slices.ContainsFunc(q.Status, func(is once.Status) bool { return is < once.Running || is > once.Parked })) {
		return once.RecordPage{}, once.ErrInvalid
	}
	return s.Store.List(ctx, q)
}

// Unwrap returns the store.
func (s onlyOpen) Unwrap() once.Store { return s.Store }

func TestStoreThatListsOnlyOpenRecords(t *testing.T) {
	s := onlyOpen{memstore.New(nil)}
	put(t, s, once.Key{Operation: "pay", ID: "done"}, record{once.Done, amount("1")})
	put(t, s, once.Key{Operation: "pay", ID: "missing"}, record{once.Done, amount("1")})
	put(t, s, once.Key{Operation: "pay", ID: "lost"}, record{status: once.Unknown})
	found, summary := run(t, crosscheck.Comparison{Store: s, Report: read(t, crosscheck.Format{}, "id\ndone\n")})
	if len(found) != 1 || found[0].Key.ID != "lost" || !summary.OnlyOpen || summary.Counts[crosscheck.Agrees] != 1 {
		t.Errorf("%+v, %+v", found, summary)
	}
}

// spoiled has a record that cannot be read.
type spoiled struct {
	*memstore.Store
	id string
}

func (s spoiled) err() error { return fmt.Errorf("%w: the record of %q", once.ErrCorrupt, s.id) }

func (s spoiled) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if k.ID == s.id {
		return once.Record{}, s.err()
	}
	return s.Store.Get(ctx, k)
}

func (s spoiled) GetMany(ctx context.Context, keys []once.Key) (recs []once.Record, err error) {
	for _, k := range keys {
		rec, err := s.Get(ctx, k)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

func (s spoiled) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	page, err := s.Store.List(ctx, q)
	page.Records = slices.DeleteFunc(page.Records, func(r once.Record) bool {
		if r.Key.ID != s.id {
			return false
		}
		page.Damaged = append(page.Damaged, s.err())
		return true
	})
	return page, err
}

// A record that cannot be read is neither missing anywhere nor does it agree. All
// others are compared.
func TestADamagedRecordEndsNoComparison(t *testing.T) {
	db := memstore.New(nil)
	for _, id := range []string{"a", "bad", "z"} {
		put(t, db, once.Key{Operation: "pay", ID: id}, record{once.Done, amount("1")})
	}
	for name, s := range map[string]once.Store{"GetMany": spoiled{db, "bad"}, "Get": struct {
		once.Store
		once.Lister
	}{spoiled{db, "bad"}, spoiled{db, "bad"}}} {
		for column, format := range map[string]crosscheck.Format{"id": {}, "key": {Key: "key"}} {
			text := column
			for _, id := range []string{"a", "bad", "z"} {
				if column == "key" {
					id = once.Key{Operation: "pay", ID: id}.String()
				}
				text += "\n" + id
			}
			found, summary := run(t, crosscheck.Comparison{Store: s, Report: read(t, format, text+"\n")})
			if len(found) > 0 || summary.Counts[crosscheck.Agrees] != 2 || summary.Damaged != 2 || !errors.Is(summary.Damage, once.ErrCorrupt) {
				t.Errorf("%s, by %s: %+v, %+v", name, column, found, summary)
			}
		}
	}
}

// changing decides about each record after it was read.
type changing struct {
	*memstore.Store
	t *testing.T
}

func (s changing) Get(ctx context.Context, k once.Key) (once.Record, error) {
	rec, err := s.Store.Get(ctx, k)
	if rec.Status == once.Unknown {
		rec.Key = k
		if err := once.MarkDone(ctx, s.Store, rec, once.Outcome{Omitted: true}, "somebody else"); err != nil {
			s.t.Error(err)
		}
	}
	return rec, err
}

// Unwrap returns the store.
func (s changing) Unwrap() once.Store { return s.Store }

func TestRecordThatWasDecidedMeanwhileIsLeftAlone(t *testing.T) {
	s := changing{memstore.New(nil), t}
	put(t, s, once.Key{Operation: "pay", ID: "1"}, record{status: once.Unknown})
	put(t, s, once.Key{Operation: "pay", ID: "2"}, record{status: once.Unknown})
	found, summary := run(t, crosscheck.Comparison{Store: s, Report: read(t, crosscheck.Format{}, "id\n1\n"), Since: time.Unix(0, 0), Until: time.Now().Add(time.Hour)})
	if len(found) != 2 || found[0].Supports != crosscheck.MarkNotDone || found[1].Supports != crosscheck.MarkDone {
		t.Fatalf("%+v, %+v", found, summary)
	}
	if err := once.MarkNotDone(t.Context(), s.Store, found[0].Record, "missing"); !errors.Is(err, once.ErrLeaseLost) {
		t.Error(err)
	}
	if err := once.MarkDone(t.Context(), s.Store, found[1].Record, once.Outcome{Body: found[1].Line, ContentType: "application/json"}, "there"); !errors.Is(err, once.ErrLeaseLost) {
		t.Error(err)
	}
}

func TestReportThatChangesIsRefused(t *testing.T) {
	text := []byte("id\n1\n2\n")
	report, err := crosscheck.Read(t.Context(), bytes.NewReader(text), crosscheck.Format{}, pay)
	if err != nil {
		t.Fatal(err)
	}
	text[3] = '2'
	c := crosscheck.Comparison{Store: memstore.New(nil), Report: report}
	if _, err := c.Run(t.Context(), func(crosscheck.Finding) error { return nil }); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Error(err)
	}
}

// failing fails to read.
type failing struct{ *memstore.Store }

func (failing) Get(context.Context, once.Key) (once.Record, error) {
	return once.Record{}, errors.New("the database is gone")
}

// Unwrap returns the store.
func (s failing) Unwrap() once.Store { return s.Store }

func TestComparisonFails(t *testing.T) {
	report := read(t, crosscheck.Format{}, "id\n1\n2\n3\n")
	c := crosscheck.Comparison{Store: failing{memstore.New(nil)}, Report: report}
	if _, err := c.Run(t.Context(), func(crosscheck.Finding) error { return nil }); err == nil || err.Error() != "the database is gone" {
		t.Error(err)
	}
	c.Store = memstore.New(nil)
	stop := errors.New("stop")
	n := 0
	if _, err := c.Run(t.Context(), func(crosscheck.Finding) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		t.Error(n, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Run(ended, func(crosscheck.Finding) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for name, c := range map[string]crosscheck.Comparison{
		"amount":   {Amount: "/amount"},
		"currency": {Currency: "/currency"},
		"time":     {Since: time.Unix(2, 0), Until: time.Unix(1, 0)},
		"margin":   {Margin: -1},
		"scope":    {AnyScope: true},
	} {
		c.Store, c.Report = memstore.New(nil), report
		if _, err := c.Run(t.Context(), func(crosscheck.Finding) error { return nil }); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
