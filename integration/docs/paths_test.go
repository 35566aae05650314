package docs

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/sqlstore"
	_ "modernc.org/sqlite"
)

var (
	typeParameters = strings.NewReplacer("[...]", "", "(*", "", ")", "")
	passedOn       = regexp.MustCompile(`(\.func[0-9]+)+(\.[0-9]+)*$`)
)

// path is the stack of its caller, a handler: the functions of the project in the order of their calls, as the table has
// them.
func path(t *testing.T) (hops []string) {
	t.Helper()
	top, err := filepath.Abs(root)
	if err != nil {
		t.Error(err)
	}
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)]) // without this function and the handler
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		in, err := filepath.Rel(top, filepath.Dir(f.File))
		if err != nil || strings.HasPrefix(in, "..") || strings.HasPrefix(in, "integration") {
			continue
		}
		name := typeParameters.Replace(f.Function[strings.LastIndex(f.Function, "/")+1:])
		short := passedOn.ReplaceAllString(name, "")
		parts := strings.Split(short, ".")[1:]
		if strings.HasSuffix(strings.Split(name, ".")[0], "docs") { // instantiated in this package: what is left is its own name
			parts = parts[len(parts)-1:]
		} else if at := slices.Index(parts, "call"); short != name && at > 0 { // inlined into its caller
			parts = parts[at:]
		}
		room := filepath.ToSlash(in)
		if room == "." {
			room = "once"
		}
		hop := "`" + room + "." + strings.Join(parts, ".") + "`"
		if short != name {
			hop = "_" + hop + "_"
		}
		hops = append([]string{hop}, hops...)
	}
	return hops
}

// drawn returns the first column of the table below a heading of
// docs/architecture.md.
func drawn(t *testing.T, heading string) (hops []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n## "+heading+"\n")
	section, _, _ := strings.Cut(after, "\n## ")
	for _, line := range strings.Split(section, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.Contains(cells[1], "`") {
			hops = append(hops, strings.TrimSpace(cells[1]))
		}
	}
	return hops
}

// TestAHandlerIsReachedAsDrawn compares the stacks in handlers with the tables of docs/architecture.md.
func TestAHandlerIsReachedAsDrawn(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "once.db")+"?_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := sqlstore.New(db, sqlstore.SQLite, nil)
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	taken := make(map[string][]string)

	queue := membroker.New(nil)
	source := queue.Queue("orders")
	if err := queue.Publisher().Publish(t.Context(), []*broker.Message{{ID: "1", Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	consumer := &inbox.Consumer{Name: "paths", Source: source,
		Handler: inbox.Tx(s, func(context.Context, *sql.Tx, *broker.Message) error {
			taken["A message"] = path(t)
			stop()
			return nil
		})}
	if err := consumer.Run(ctx); err != nil {
		t.Error(err)
	}

	customer := func(*http.Request) (string, error) { return "alice", nil }
	guarded := httponce.HandlerTx(s, customer, func(http.ResponseWriter, *http.Request, *sql.Tx) error {
		taken["A request"] = path(t)
		return nil
	}, nil)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set(httponce.KeyHeader, `"8e03978e-40d5-43dd-bc93-6894a57f9324"`)
	guarded.ServeHTTP(httptest.NewRecorder(), r)

	op := &once.Operation[int]{Name: "charge", OnUnknown: once.Park}
	if _, err := once.Do(t.Context(), s, op.For("1"), func(context.Context, once.Key) (int, error) {
		taken["An effect outside the database"] = path(t)
		return 1, nil
	}); err != nil {
		t.Error(err)
	}

	for _, heading := range []string{"A message", "A request", "An effect outside the database"} {
		if want := drawn(t, heading); len(want) < 5 || !slices.Equal(taken[heading], want) {
			t.Errorf("%s: docs/architecture.md has\n%s\nand the handler was reached by\n%s", heading,
				strings.Join(want, "\n"), strings.Join(taken[heading], "\n"))
		}
	}
}
