package publishing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlschema/sqltest"
)

func tablesOf(t testing.TB, d sqlschema.Dialect) *Tables {
	t.Helper()
	n, err := sqlschema.For(d, "", "")
	if err != nil {
		t.Fatal(err)
	}
	return NewTables(n)
}

func messages(n int) (ms []store.Outgoing) {
	for i := range n {
		ms = append(ms, store.Outgoing{Message: broker.Message{ID: fmt.Sprint(i), Topic: "t"}, Lane: i % lanes, Seq: int64(i + 1)})
	}
	return ms
}

// everything calls all methods in all ways that make a difference for the SQL,
// and returns the statements that they sent.
func everything(t *testing.T, d sqlschema.Dialect) map[string][]any {
	t.Helper()
	ctx, r, all, relay := t.Context(), new(sqltest.Recorder), tablesOf(t, d), [16]byte{1}
	late := store.Outgoing{Message: broker.Message{ID: "1", Topic: "t"}, Delay: time.Hour}
	failed := []error{all.Put(ctx, r, messages(300)), all.Put(ctx, r, append(messages(8), late)),
		all.Release(ctx, r, relay, nil), all.Release(ctx, r, relay, []int{1, 2})}
	did := func(_ any, err error) { failed = append(failed, err) }
	for _, who := range [][16]byte{{}, relay} {
		for _, then := range []store.Ending{store.Delete, store.Keep, store.Archive} {
			did(all.Sent(ctx, r, who, messages(3), then))
		}
		did(all.Move(ctx, r, who, messages(3), store.Delayed))
		did(all.Remove(ctx, r, who, messages(3)))
		_, _, err := all.Wake(ctx, r, who, store.Pending, 7)
		failed = append(failed, err)
	}
	did(all.Forget(ctx, r, time.Hour, 7))
	did(all.Depth(ctx, r, 7))
	did(all.estimate(ctx, r, store.Depth{}))
	for _, q := range []store.OutgoingQuery{{}, {Lanes: []int{3, 1}}, {Lanes: []int{1}, MaxBytes: 5, After: 3},
		{State: store.Delayed, Bodiless: true, MaxBytes: 1}, {Heads: true, IDs: []string{"1"}},
		{OrderingKey: "k", Topic: "t", IDs: []string{"1", "2"}, Heads: true, Lanes: []int{2, 1}, MaxBytes: 9}} {
		did(all.Outgoing(ctx, r, q))
	}
	if d == sqlschema.PostgreSQL {
		c, err := all.PutArrays(messages(3))
		r.Record(c.Text, c.Args)
		failed = append(failed, err)
	}
	if _, err := all.Lease(ctx, r, relay, time.Hour, []int{0, 15}); !isRefusal(err) { // there are no rows
		t.Errorf("Lease on a table without lanes returned %v", err)
	}
	if err := errors.Join(failed...); err != nil {
		t.Error(err)
	}
	return r.Asked
}

func isRefusal(err error) bool {
	var refused sqlschema.Refusal
	return errors.As(err, &refused)
}

var dialects = []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.MySQL, sqlschema.SQLite, sqlschema.SQLServer}

func TestStatementsAreComplete(t *testing.T) {
	for _, d := range dialects {
		all := everything(t, d)
		if len(all) < 30 {
			t.Errorf("dialect %v has %d statements only: the test does not call what it says", d, len(all))
		}
		sqltest.CheckComplete(t, d, all)
	}
}

func TestNoStatementHasTooManyParameters(t *testing.T) {
	for _, d := range dialects {
		ms := messages(1000)
		ms[0].Delay = time.Hour
		calls, err := tablesOf(t, d).PutCalls(ms)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range calls {
			if len(c.Args) > 2000 { // SQL Server takes 2,100
				t.Errorf("dialect %v: %d parameters", d, len(c.Args))
			}
		}
		if len(calls) > 12 {
			t.Errorf("dialect %v: %d statements for 1,000 messages", d, len(calls))
		}
	}
}

func TestLargeBodiesGoInStatementsOfTheirOwn(t *testing.T) {
	ms := messages(5)
	for i, size := range []int{putBytes + 1, putBytes / 2, putBytes / 2, 1, 1} {
		ms[i].Message.Body = make([]byte, size)
	}
	calls, err := tablesOf(t, sqlschema.MySQL).PutCalls(ms)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, c := range calls {
		got = append(got, len(c.Args)/7)
	}
	if !slices.Equal(got, []int{1, 2, 2}) {
		t.Errorf("the statements have %v messages", got)
	}
}

func TestStatementsAreMadeOnce(t *testing.T) {
	all := tablesOf(t, sqlschema.PostgreSQL)
	q := store.OutgoingQuery{Lanes: []int{1, 2}, MaxBytes: 5}
	first, err := all.OutgoingCall(q, false)
	if err != nil {
		t.Fatal(err)
	}
	q.Lanes = []int{7, 3}
	again, _ := all.OutgoingCall(q, false)
	if first.Text != again.Text || !slices.Contains(again.Args, any(int64(7))) {
		t.Errorf("other lanes are another statement:\n%s\n%s\n%v", first.Text, again.Text, again.Args)
	}
	made := 0
	all.sql.made.Range(func(any, any) bool { made++; return true })
	if made != 1 {
		t.Errorf("%d statements were made", made)
	}
}

func TestInvalidArgumentsAreRefused(t *testing.T) {
	all, ctx, r := tablesOf(t, sqlschema.SQLite), t.Context(), new(sqltest.Recorder)
	ms, relay := messages(1), [16]byte{1}
	for name, call := range map[string]func() error{
		"a bad message":     func() error { return all.Put(ctx, r, append(ms, store.Outgoing{Message: broker.Message{ID: "1"}})) },
		"a lane":            func() error { _, err := all.Outgoing(ctx, r, store.OutgoingQuery{Lanes: []int{16}}); return err },
		"a state":           func() error { _, err := all.Outgoing(ctx, r, store.OutgoingQuery{State: 5}); return err },
		"lanes":             func() error { _, err := all.Lease(ctx, r, relay, time.Hour, []int{-1}); return err },
		"nobody":            func() error { _, err := all.Lease(ctx, r, [16]byte{}, time.Hour, nil); return err },
		"a lane to release": func() error { return all.Release(ctx, r, relay, []int{16}) },
		"an ending":         func() error { _, err := all.Sent(ctx, r, relay, ms, 3); return err },
		"a lane of a row":   func() error { _, err := all.Remove(ctx, r, relay, []store.Outgoing{{Lane: 16}}); return err },
		"another state":     func() error { _, err := all.Move(ctx, r, relay, ms, 5); return err },
		"a long reason": func() error {
			_, err := all.Move(ctx, r, relay, []store.Outgoing{{Reason: strings.Repeat("x", longestReason+1)}}, store.Held)
			return err
		},
		"no limit":         func() error { _, err := all.Forget(ctx, r, time.Hour, 0); return err },
		"no limit to wake": func() error { _, _, err := all.Wake(ctx, r, relay, store.Pending, 0); return err },
		"woken to wait":    func() error { _, _, err := all.Wake(ctx, r, relay, store.Delayed, 1); return err },
	} {
		if err := call(); !isRefusal(err) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
	if len(r.Asked) > 0 {
		t.Errorf("the database was asked: %v", r.Asked)
	}
}

func TestRowsWithOneChangeAreTogether(t *testing.T) {
	all := tablesOf(t, sqlschema.SQLite)
	ms := messages(2*atOnce + 1)
	calls, err := all.SentCalls([16]byte{1}, ms, store.Delete)
	if err != nil || len(calls) != 3 {
		t.Fatalf("%d calls, %v", len(calls), err)
	}
	seen := 0
	for _, m := range ms {
		key := fmt.Sprintf("%d", m.Seq)
		for _, c := range calls {
			for _, list := range strings.Split(c.Text, "lane = ")[1:] {
				lane, seqs, _ := strings.Cut(list, " AND state = 0 AND seq IN (")
				seqs, _, _ = strings.Cut(seqs, ")")
				if lane == fmt.Sprint(m.Lane) && slices.Contains(strings.Split(seqs, ","), key) {
					seen++
				}
			}
		}
	}
	if seen != len(ms) {
		t.Errorf("%d of %d rows are in the statements", seen, len(ms))
	}
	ms = messages(4)
	ms[1].State, ms[3].State = store.Held, store.Held
	if calls, err = all.SentCalls([16]byte{}, ms, store.Archive); err != nil || len(calls) != 6 {
		t.Errorf("two states and an archive: %d calls, %v", len(calls), err)
	}
}

func TestEstimateTakesTheBeginningForAll(t *testing.T) {
	r := new(sqltest.Recorder)
	r.Answer = [][]any{{int64(perLane), int64(1), int64(1 + 2*(perLane-1)), int64(1 + 2*(999))}, // every second: 1,000
		{int64(3), int64(5), int64(90), int64(90)}, {int64(0), int64(0), int64(0), int64(0)}}
	got, err := tablesOf(t, sqlschema.SQLite).estimate(t.Context(), r, store.Depth{Count: 10})
	if err != nil || got != 1003 {
		t.Errorf("the estimate is %d, %v, want 1003", got, err)
	}
	r.Answer = nil
	if got, _ = tablesOf(t, sqlschema.SQLite).estimate(t.Context(), r, store.Depth{Count: 10}); got != 10 {
		t.Errorf("the estimate is %d, below what was counted", got)
	}
}

func TestDamagedColumnsAreNoMessage(t *testing.T) {
	for _, c := range []struct{ header, produced, want string }{
		{"", "", ""}, {"x", "", "column header"}, {"", "yesterday", "column produced"},
		{"x", "yesterday", "column header"}, {`{"base64":{"%":""}}`, "", "column header"},
		{`{"content-type": "text/plain"}`, "", `like {"text": {"name": "value"}}`}, {`{"text":{"a":"b"},"c":"d"}`, "", "column header"},
		{`{"text":{"a":"b"}} {}`, "", "column header"}, {`{"text":{"a":1}}`, "", "column header"}, {`{"text":{"a":"b"}}` + "\n", "", ""},
	} {
		m := (&reader{seq: 7, id: "1", header: c.header, produced: c.produced}).message()
		if (m.Unopened == nil) != (c.want == "") || m.Message.ID != "1" || m.Seq != 7 {
			t.Errorf("%q, %q became %+v", c.header, c.produced, m)
		}
		if m.Unopened != nil && (!strings.Contains(m.Unopened.Error(), c.want) || !errors.Is(m.Unopened, once.ErrCorrupt)) {
			t.Errorf("%q, %q became %v", c.header, c.produced, m.Unopened)
		}
	}
}

// keptRows is a table that has rows in state 4 only, in one lane.
type keptRows struct {
	*sqltest.Recorder
	lane, n int
	foreign int64 // Seq
	walked  string
	moved   int
}

func (k *keptRows) Query(ctx context.Context, query string, args ...any) (sqlschema.Rows, error) {
	r := new(sqltest.Recorder)
	if query == k.walked {
		lane, after, limit := args[0].(int64), args[1].(int64), args[2].(int64)
		for seq := after + 1; lane == int64(k.lane) && seq <= min(after+limit, int64(k.n)); seq++ {
			foreign := int64(0)
			if seq == k.foreign {
				foreign = 1
			}
			r.Answer = append(r.Answer, []any{seq, foreign})
		}
	}
	return r.Query(ctx, query, args...)
}

func (k *keptRows) Exec(ctx context.Context, statement string, args ...any) (int64, error) {
	k.moved++
	return k.Recorder.Exec(ctx, statement, args...)
}

// A row of another program is found wherever it stands among kept ones, after as
// many looks as its distance from the first one needs.
func TestTheSearchForStraysMovesOn(t *testing.T) {
	for _, foreign := range []int64{1, 4999, 5000, 5001, 12_345, 20_000} {
		all := tablesOf(t, sqlschema.SQLite)
		rows := &keptRows{Recorder: new(sqltest.Recorder), lane: 5, n: 20_000, foreign: foreign, walked: all.sql.walk.Text}
		looks := 0
		for ; rows.moved == 0 && looks < 10; looks++ {
			all.strays.Store(nil)
			if err := all.stickStrays(t.Context(), rows, [16]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		if want := int((foreign + strayRows - 1) / strayRows); looks != want || rows.moved == 0 {
			t.Errorf("row %d was found after %d looks, want %d", foreign, looks, want)
		}
	}
}
