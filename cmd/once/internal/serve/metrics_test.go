package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store"
)

// seeing is a server that does everything, and has just looked at its database.
func seeing(s sighting) *server {
	s.at = time.Now()
	return &server{lookouts: lookout{last: s}, relay: new(outbox.Relay), parking: new(reconcile.Reconciler),
		janitor: new(janitor.Janitor)}
}

func TestLagOfALog(t *testing.T) {
	lag := &store.Lag{Behind: 5, Retained: 7, Active: true, Status: store.LagUnreserved}
	text := seeing(sighting{lag: lag}).metrics()
	for _, want := range []string{`once_outbox_log_lag_bytes{once_name="serve"} 5`, `once_outbox_log_retained_bytes{once_name="serve"} 7`,
		`once_outbox_log_active{once_name="serve"} 1`, `once_outbox_log_status{once_name="serve",once_status="unreserved"} 1`,
		`once_outbox_log_status{once_name="serve",once_status="reserved"} 0`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
	for _, s := range []sighting{{}, {lag: lag, unread: errors.New("too slow")}, {lag: lag, err: errors.New("down")}} {
		if text := seeing(s).metrics(); strings.Contains(text, "once_outbox_log") {
			t.Errorf("a lag that is not known is reported:\n%s", text)
		}
	}
}

// A reader of PostgreSQL's log stands still, while others write to the log.
func TestLagOfPostgreSQLsLog(t *testing.T) {
	u, err := url.Parse(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	schema, q := "serve_"+strings.ToLower(rand.Text()), u.Query()
	q.Set("schema", schema)
	q.Set("outbox", "log-only")
	u.RawQuery = q.Encode()
	at, err := target.Open(t.Context(), u.String(), new(target.Options))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Close() })
	testenv.CheckPostgres(t, func(query string) (answer string, err error) {
		err = at.Tables.DB.QueryRow(query).Scan(&answer)
		return answer, err
	})
	t.Cleanup(func() { at.Tables.DB.Exec("DROP SCHEMA IF EXISTS " + schema + " CASCADE") })
	if err := at.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &server{target: at, lookouts: lookout{target: at}}
	shown := func(name string) (value float64) {
		t.Helper()
		s.lookouts.last = sighting{} // look anew
		_, after, _ := strings.Cut(s.metrics(), "\n"+name+" ")
		if _, err := fmt.Sscan(after, &value); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return value
	}
	if shown(`once_outbox_log_status{once_name="serve",once_status="missing"}`) != 1 {
		t.Error("a slot that there never was is not missing")
	}
	log := at.Store.(interface {
		store.OutboxLog
		DiscardOutboxLog(context.Context) error
	})
	tail, err := log.TailOutbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := tail.Close(context.Background())
		reset := once.ErrConflict
		for end := time.Now().Add(testenv.Patience); errors.Is(reset, once.ErrConflict) && time.Now().Before(end); {
			reset = log.DiscardOutboxLog(context.Background()) // the server notices a moment later that the reader is gone
		}
		if err != nil || reset != nil {
			t.Error(err, reset)
		}
	})
	const much = 8 << 20
	emit := func(prefix, content string) {
		t.Helper()
		if _, err := at.Tables.DB.Exec(`SELECT pg_logical_emit_message(true, $1, $2)`, prefix, content); err != nil {
			t.Fatal(err)
		}
	}
	emit(schema+".once_outbox.1", `{"id":"1","topic":"orders"}`+"\nbody")
	emit("somebody else's", strings.Repeat("x", much))
	if ms, err := tail.Receive(t.Context(), 1); err != nil || len(ms) != 1 {
		t.Fatal(ms, err)
	}
	lag, retained := shown(`once_outbox_log_lag_bytes{once_name="serve"}`), shown(`once_outbox_log_retained_bytes{once_name="serve"}`)
	if lag < much || retained < lag {
		t.Errorf("the lag is %v, and %v are retained", lag, retained)
	}
	if shown(`once_outbox_log_active{once_name="serve"}`) != 1 || shown(`once_outbox_log_status{once_name="serve",once_status="reserved"}`) != 1 {
		t.Error("a slot that is read is not active, or not reserved")
	}
}

// The alert rules and the dashboard go by the names of otelonce: serve has no others but its own readiness.
func TestNamesAreThoseOfOpenTelemetry(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{"once_store_ready": "gauge"}
	rows := regexp.MustCompile("(?m)^\\| `(once\\.[a-z.]+)` \\| ([a-z]+), `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1)
	for _, row := range rows {
		name := strings.ReplaceAll(row[1], ".", "_")
		switch row[3] {
		case "s":
			name += "_seconds"
		case "By":
			name += "_bytes"
		}
		if row[2] == "counter" {
			name += "_total"
		}
		known[name] = row[2]
	}
	types := regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(seeing(sighting{lag: new(store.Lag)}).metrics(), -1)
	if len(rows) < 10 || len(types) < 10 {
		t.Fatalf("%d metrics are documented, and %d were seen", len(rows), len(types))
	}
	for _, m := range types {
		if known[m[1]] != m[2] {
			t.Errorf("%s is a %s here, and %q in docs/observing.md", m[1], m[2], known[m[1]])
		}
	}
}
