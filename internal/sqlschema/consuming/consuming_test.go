package consuming

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sqlschema"
	"github.com/effectively-once/once/store"
)

// recorder is a database without rows that writes down what it is asked.
type recorder struct{ asked map[string][]any }

func (r *recorder) Exec(_ context.Context, statement string, args ...any) (int64, error) {
	r.asked[statement] = args
	return 1, nil
}

func (r *recorder) Query(_ context.Context, statement string, args ...any) (Rows, error) {
	r.asked[statement] = args
	return none{}, nil
}

// none are no rows.
type none struct{}

func (none) Next() bool        { return false }
func (none) Scan(...any) error { return errors.New("there is no row") }
func (none) Err() error        { return nil }
func (none) Close()            {}

// everything calls all methods in all ways that make a difference for the SQL.
func everything(t *testing.T, n sqlschema.Names) map[string][]any {
	t.Helper()
	ctx, r, all := t.Context(), &recorder{asked: make(map[string][]any)}, New(n)
	from := store.Position{Consumer: "c", Partition: "0", Epoch: 1}
	to := from
	to.Offset = 1
	m := store.Shelved{Consumer: "c", State: store.Waiting, Message: broker.Message{ID: "1", OrderingKey: "k"}}
	gone := m
	gone.State = store.Handled
	_, registered := all.Register(ctx, r, store.Consumer{Name: "c"})
	_, listed := all.Consumers(ctx, r)
	_, opened := all.Open(ctx, r, "c", "0")
	if opened == nil {
		t.Error("a row was opened that is not there")
	}
	_, positions := all.Positions(ctx, r, "c")
	_, marked := all.Mark(ctx, r, from, to)
	text, args, moved := all.Move(from, to)
	r.asked[text] = args
	var lost Lost
	if err := all.Stands(ctx, r, from, to); !errors.As(err, &lost) {
		t.Errorf("a row that is not there stands: %v", err)
	}
	_, forgotten := all.Forget(ctx, r, time.Hour, 7)
	if err := errors.Join(registered, listed, positions, marked, moved, forgotten, all.Unmark(ctx, r, to), all.Set(ctx, r, to),
		all.Shelve(ctx, r, []store.Shelved{m}), all.Change(ctx, r, m), all.Change(ctx, r, gone)); err != nil {
		t.Error(err)
	}
	for _, keys := range []int{1, 2, 9, 100} {
		for _, parkedToo := range []bool{true, false} {
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint(i)
			}
			if _, err := all.Blocked(ctx, r, "c", names, parkedToo); err != nil {
				t.Error(err)
			}
		}
	}
	for _, q := range []store.ShelfQuery{{}, {Consumer: "c", OrderingKey: "k", Topic: "t", States: []store.ShelfState{1, 2}, IDs: []string{"1", "2"},
		Ready: true}, {OrderingKey: "k", IDs: []string{"1", "2"}, Bodiless: true, Ready: true, BehindParked: true}} {
		if _, err := all.Shelved(ctx, r, q); err != nil {
			t.Error(err)
		}
	}
	return r.asked
}

func TestStatementsAreComplete(t *testing.T) {
	placeholder := map[sqlschema.Dialect]string{sqlschema.PostgreSQL: "$%d::", sqlschema.SQLServer: "(@p%d AS "}
	for _, d := range []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.MySQL, sqlschema.SQLite, sqlschema.SQLServer} {
		n, err := sqlschema.For(d, "", "")
		if err != nil {
			t.Fatal(err)
		}
		all := everything(t, n)
		if len(all) < 20 {
			t.Errorf("dialect %v has %d statements only: the test does not call what it says", d, len(all))
		}
		for text, args := range all {
			if strings.ContainsAny(strings.NewReplacer("@@", "", "@p", "").Replace(text), "{}@") {
				t.Errorf("a statement of dialect %v is not filled in:\n%s", d, text)
			}
			want := strings.Count(text, "?")
			if numbered := placeholder[d]; numbered != "" {
				for want = 0; strings.Contains(text, fmt.Sprintf(numbered, want+1)); want++ {
				}
			}
			if len(args) != want {
				t.Errorf("dialect %v has %d arguments for %d placeholders:\n%s", d, len(args), want, text)
			}
		}
	}
}

func TestHeadersComeBackAsTheyWere(t *testing.T) {
	random := func() string {
		b := make([]byte, rand.IntN(4))
		for i := range b {
			b[i] = byte(rand.IntN(256))
		}
		return string(b)
	}
	for range 2000 {
		want := make(map[string]string)
		for range rand.IntN(4) {
			want[random()] = random()
		}
		text, err := EncodeHeader(want)
		got, errBack := DecodeHeader(text)
		if err != nil || errBack != nil || !maps.Equal(got, want) || strings.ContainsRune(text, 0) {
			t.Fatalf("%q became %q, by %q, %v, %v", want, got, text, err, errBack)
		}
	}
	for _, text := range []string{"x", `{"base64":{"?":""}}`} {
		if got, err := DecodeHeader(text); err == nil {
			t.Errorf("%q was read as %q", text, got)
		}
	}
}

func TestTimesComeBackAsTheyWere(t *testing.T) {
	for _, want := range []time.Time{{}, time.Unix(0, 1), time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.FixedZone("", -12*3600))} {
		got, err := DecodeTime(EncodeTime(want))
		if err != nil || !got.Equal(want) {
			t.Errorf("%v became %v, %v", want, got, err)
		}
	}
}
