package sqlschema

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// scripted is a Querier that returns one number for a query: the answer whose
// text is in the query, or 0. It fails statements that contain fail.
type scripted struct {
	answers map[string]int64
	fail    string
	ran     []string
}

var errFails = errors.New("fails")

func (x *scripted) Exec(ctx context.Context, statement string, _ ...any) (int64, error) {
	x.ran = append(x.ran, short(statement))
	if x.fail != "" && strings.Contains(statement, x.fail) {
		return 0, errFails
	}
	return 0, ctx.Err()
}

func (x *scripted) Query(ctx context.Context, query string, _ ...any) (Rows, error) {
	for text, answer := range x.answers {
		if strings.Contains(query, text) {
			return &oneNumber{number: answer}, ctx.Err()
		}
	}
	return &oneNumber{}, ctx.Err()
}

// oneNumber is the result of a query that returns one number.
type oneNumber struct {
	number int64
	read   bool
}

func (r *oneNumber) Next() bool {
	first := !r.read
	r.read = true
	return first
}

func (r *oneNumber) Scan(dest ...any) error {
	if n, ok := dest[0].(*int64); ok {
		*n = r.number
	}
	return nil
}

func (r *oneNumber) Err() error { return nil }
func (r *oneNumber) Close()     {}

func TestMigrateEndsWhatItBegan(t *testing.T) {
	for _, c := range []struct {
		dialect Dialect
		fail    string
		want    string // the last statement
	}{
		{PostgreSQL, "", "COMMIT"},
		{PostgreSQL, "CREATE INDEX", "ROLLBACK"},
		{PostgreSQL, "pg_advisory", "ROLLBACK"},
		{SQLite, "", "COMMIT"},
		{SQLite, "CREATE TABLE", "ROLLBACK"},
		{SQLite, "BEGIN", "BEGIN IMMEDIATE"},
		{SQLServer, "", "COMMIT"},
		{SQLServer, "CREATE INDEX", "ROLLBACK"},
		{SQLServer, "BEGIN", "BEGIN TRANSACTION"},
		{MySQL, "", "DO RELEASE_LOCK('onced41d8cd98f00b204e9800998ecf8427e')"},
		{MySQL, "CREATE TABLE", "DO RELEASE_LOCK('onced41d8cd98f00b204e9800998ecf8427e')"},
	} {
		n, _ := For(c.dialect, "", "")
		x := &scripted{fail: c.fail, answers: map[string]int64{"GET_LOCK": 1}}
		err := n.Migrate(t.Context(), x)
		if failed := errors.Is(err, errFails); failed != (c.fail != "") {
			t.Errorf("dialect %v, failing at %q: Migrate returned %v", c.dialect, c.fail, err)
		}
		if last := x.ran[len(x.ran)-1]; last != c.want {
			t.Errorf("dialect %v, failing at %q: it ended with %q, want %q", c.dialect, c.fail, last, c.want)
		}
	}
}

func TestMigrateNeedsItsLock(t *testing.T) {
	n, _ := For(MySQL, "", "")
	x := &scripted{}
	if err := n.Migrate(t.Context(), x); err == nil || len(x.ran) > 0 {
		t.Errorf("without the lock, Migrate returned %v and ran %v", err, x.ran)
	}
	n, _ = For(SQLServer, "", "")
	x = &scripted{answers: map[string]int64{"sp_getapplock": -1}}
	if err := n.Migrate(t.Context(), x); err == nil || !slices.Equal(x.ran, []string{"BEGIN TRANSACTION", "ROLLBACK"}) {
		t.Errorf("without the lock of SQL Server, Migrate returned %v and ran %v", err, x.ran)
	}
}

func TestMigrateChangesNothingThatIsRight(t *testing.T) {
	n, _ := For(SQLite, "", "")
	x := &scripted{answers: map[string]int64{"sqlite_master": 1, "MAX": int64(n.Latest())}}
	if err := n.Migrate(t.Context(), x); err != nil || !slices.Equal(x.ran, []string{"BEGIN IMMEDIATE", "COMMIT"}) {
		t.Errorf("Migrate returned %v and ran %v", err, x.ran)
	}
}

func TestMigrateRollsBackAfterItsContext(t *testing.T) {
	n, _ := For(SQLite, "", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x := &scripted{}
	if err := n.lockAndUpgrade(ctx, x, n.Migrations(), n.refuseFuture); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := finish(ctx, x, "ROLLBACK now"); err != nil {
		t.Errorf("the end has the caller's context: %v", err)
	}
}

func TestVersionsOfMigrationsRise(t *testing.T) {
	for _, d := range []Dialect{PostgreSQL, MySQL, SQLite, SQLServer} {
		n, _ := For(d, "", "")
		for i, m := range n.Migrations() {
			if m.Version != i+1 || m.Compatible < 1 || m.Compatible > m.Version || m.Name == "" {
				t.Errorf("dialect %v: migration %d is %+v", d, i, m)
			}
			if !strings.Contains(n.Print(i), m.Row) || strings.Contains(n.Print(m.Version), m.Row) {
				t.Errorf("dialect %v: Print does not begin after the version that it is given", d)
			}
		}
	}
}

func short(statement string) string {
	words := strings.Fields(statement)
	return strings.Join(words[:min(2, len(words))], " ")
}
