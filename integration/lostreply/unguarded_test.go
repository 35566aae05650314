package lostreply_test

import (
	"context"
	"database/sql/driver"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"

	"github.com/effectively-once/once/integration/wire"
)

// client writes one row without a guard.
type client struct {
	name   string
	module string // whose version decides
	server string
	write  func(t *testing.T, s *site, statement string) error
}

// clients write in all ways that drivers treat differently: a statement with
// and without arguments, with and without a result, in a batch, and in a
// transaction whose COMMIT is lost.
var clients = []client{
	{"database/sql, Exec", pgxModule, "pgx", execAlone},
	{"database/sql, Exec with an argument", pgxModule, "pgx", execWithArgument},
	{"database/sql, QueryRow with RETURNING", pgxModule, "pgx", returning},
	{"database/sql, Commit", pgxModule, "pgx", commit},
	{"native, Exec", pgxModule, "pgx", native(pgxExec)},
	{"native, Exec with an argument", pgxModule, "pgx", native(pgxExecWithArgument)},
	{"native, QueryRow with RETURNING", pgxModule, "pgx", native(pgxReturning)},
	{"native, SendBatch", pgxModule, "pgx", native(pgxBatch)},
	{"native, Commit", pgxModule, "pgx", native(pgxCommit)},
	{"database/sql, Exec", pqModule, "pq", execAlone},
	{"database/sql, Exec with an argument", pqModule, "pq", execWithArgument},
	{"database/sql, QueryRow with RETURNING", pqModule, "pq", returning},
	{"database/sql, Commit", pqModule, "pq", commit},
	{"database/sql, Exec", mysqlModule, "mysql", execAlone},
	{"database/sql, Exec with an argument", mysqlModule, "mysql", execWithArgument},
	{"database/sql, Commit", mysqlModule, "mysql", commit},
}

const (
	pgxModule   = "github.com/jackc/pgx/v5"
	pqModule    = "github.com/lib/pq"
	mysqlModule = "github.com/go-sql-driver/mysql"
)

func execAlone(t *testing.T, s *site, statement string) error {
	_, err := s.through.ExecContext(t.Context(), statement)
	return err
}

func execWithArgument(t *testing.T, s *site, statement string) error {
	_, err := s.through.ExecContext(t.Context(), withArgument(statement, s.mark(1)), 7)
	return err
}

func withArgument(statement, mark string) string {
	return strings.Replace(statement, ", 7)", ", "+mark+")", 1)
}

func returning(t *testing.T, s *site, statement string) error {
	var run int
	return s.through.QueryRowContext(t.Context(), statement+" RETURNING run").Scan(&run)
}

func commit(t *testing.T, s *site, statement string) error {
	tx, err := s.through.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
	return tx.Commit()
}

func native(write func(context.Context, *pgx.Conn, string) error) func(*testing.T, *site, string) error {
	return func(t *testing.T, s *site, statement string) error {
		conn, err := pgx.Connect(t.Context(), s.dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		return write(t.Context(), conn, statement)
	}
}

func pgxExec(ctx context.Context, conn *pgx.Conn, statement string) error {
	_, err := conn.Exec(ctx, statement)
	return err
}

func pgxExecWithArgument(ctx context.Context, conn *pgx.Conn, statement string) error {
	_, err := conn.Exec(ctx, withArgument(statement, "$1"), 7)
	return err
}

func pgxReturning(ctx context.Context, conn *pgx.Conn, statement string) error {
	var run int
	return conn.QueryRow(ctx, statement+" RETURNING run").Scan(&run)
}

func pgxBatch(ctx context.Context, conn *pgx.Conn, statement string) error {
	batch := new(pgx.Batch)
	batch.Queue(statement)
	batch.Queue("SELECT 1")
	return conn.SendBatch(ctx, batch).Close()
}

func pgxCommit(ctx context.Context, conn *pgx.Conn, statement string) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, statement); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// losses are the ways to lose the reply to a request that the server has
// executed.
var losses = []struct {
	name   string
	action wire.Action
}{
	{"all of the reply", wire.SwallowReply},
	{"all but its first byte", wire.CutReply(1)},
	{"its last byte", wire.CutReply(-1)},
}

// observation is what a client did after one loss.
type observation struct {
	rows int  // how often the row is written
	ok   bool // whether the client got no error
	safe bool // whether the client was told that nothing was sent, so it may retry
}

func (o observation) String() string {
	switch {
	case o.rows == 1 && !o.ok && !o.safe:
		return "right"
	case o.rows > 1 && o.ok:
		return fmt.Sprintf("written %d times, no error", o.rows)
	case o.rows == 1 && o.safe:
		return "written, and called safe to retry"
	default:
		return fmt.Sprintf("%d rows, ok %v, safe to retry %v", o.rows, o.ok, o.safe)
	}
}

// The test shows what drivers do by themselves when a reply is lost. It fails
// if that differs from what docs/lost-replies.md says about the version in this
// build.
func TestUnguarded(t *testing.T) {
	for _, c := range clients {
		t.Run(c.module+" "+c.name, func(t *testing.T) {
			s := newSite(t, c.server)
			for _, loss := range losses {
				var each []string
				for range repeats {
					each = append(each, observe(t, s, c, loss.action).String())
				}
				verdict := tally(each)
				report(t, fmt.Sprintf("%s %s | %s | %s | %s", c.module, version(c.module), c.name, loss.name, verdict))
			}
		})
	}
}

// repeats is how often a case runs. The result must not depend on timing.
const repeats = 3

func tally(verdicts []string) string {
	slices.Sort(verdicts)
	return strings.Join(slices.Compact(verdicts), "; or ")
}

func observe(t *testing.T, s *site, c client, action wire.Action) (o observation) {
	t.Helper()
	id := unique()
	s.reopen(t) // a driver may not have noticed that its connection was lost
	lost := "INSERT INTO effect"
	if strings.HasSuffix(c.name, "Commit") {
		lost = "commit"
	}
	rule := s.proxy.On(wire.Runs(lost), action)
	err := c.write(t, s, fmt.Sprintf("INSERT INTO effect (id, run) VALUES ('%s', 7)", id))
	if rule.Hits() != 1 {
		t.Fatalf("nothing was lost: %v", err)
	}
	o.ok = err == nil
	o.safe = pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn)
	o.rows = len(s.effects(t, id))
	return o
}

// seen is what was observed with the versions in docs/lost-replies.md.
//
//go:embed testdata/seen.txt
var seen string

// inModule has a function of each module. The path of its file tells the
// version of the module in this build.
var inModule = map[string]any{pgxModule: pgx.Connect, pqModule: pq.Open, mysqlModule: mysql.ParseDSN}

var versionInPath = regexp.MustCompile(`@(v[^/]+)/`)

func version(module string) string {
	file, _ := runtime.FuncForPC(reflect.ValueOf(inModule[module]).Pointer()).FileLine(0)
	found := versionInPath.FindStringSubmatch(file)
	if found == nil {
		return ""
	}
	return found[1]
}

// report compares a line with what was seen before with this version. It only
// logs the line of a new version.
func report(t *testing.T, line string) {
	t.Helper()
	t.Log(line)
	appendTo(t, os.Getenv(reportVar), line)
	subject := line[:strings.Index(line, " | ")]
	if strings.Contains(seen, subject+" | ") && !strings.Contains(seen, line+"\n") {
		t.Errorf("%s\nis not what docs/lost-replies.md and testdata/seen.txt say", line)
	}
}

// reportVar names a file to which the lines are appended.
const reportVar = "ONCE_LOST_REPLIES_REPORT"

func appendTo(t *testing.T, name, line string) {
	t.Helper()
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintln(file, line)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Error(err)
	}
}

// The tables of the page name the versions that were tested.
func TestDocumentNamesWhatWasSeen(t *testing.T) {
	document, err := os.ReadFile("../../docs/lost-replies.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(seen) {
		subject, _, _ := strings.Cut(line, " | ")
		_, version, ok := strings.Cut(subject, " ")
		if !ok || !strings.Contains(string(document), version) {
			t.Errorf("docs/lost-replies.md says nothing of %q", subject)
		}
	}
}
