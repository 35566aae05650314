package serve

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
)

// seeing is a server that does everything, and has just looked at its database.
func seeing(s sighting) *server {
	s.at = time.Now()
	return &server{lookouts: lookout{last: s}, relay: new(outbox.Relay), parking: new(reconcile.Reconciler),
		janitor: new(janitor.Janitor)}
}

// A depth that is not known is no depth of nothing.
func TestAnUnknownDepthIsNotReported(t *testing.T) {
	if text := seeing(sighting{}).metrics(); !strings.Contains(text, `once_outbox_depth{once_name="serve",once_state="stuck"} 0`) {
		t.Errorf("an empty outbox is not reported:\n%s", text)
	}
	for _, s := range []sighting{{unread: errors.New("too slow")}, {err: errors.New("down")}} {
		if text := seeing(s).metrics(); strings.Contains(text, "once_outbox_depth") || strings.Contains(text, "once_outbox_oldest") {
			t.Errorf("a depth that could not be read is reported:\n%s", text)
		}
	}
}

// The alert rules and the dashboard go by the names of otelobserve: serve has no others but its own readiness.
func TestNamesAreThoseOfOpenTelemetry(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{"once_store_ready": "gauge"}
	rows := regexp.MustCompile("(?m)^\\| `(once\\.[a-z.]+)` \\| ([a-z]+), `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1)
	for _, row := range rows {
		name := strings.ReplaceAll(row[1], ".", "_")
		if row[3] == "s" {
			name += "_seconds"
		}
		if row[2] == "counter" {
			name += "_total"
		}
		known[name] = row[2]
	}
	types := regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(seeing(sighting{}).metrics(), -1)
	if len(rows) < 10 || len(types) < 10 {
		t.Fatalf("%d metrics are documented, and %d were seen", len(rows), len(types))
	}
	for _, m := range types {
		if known[m[1]] != m[2] {
			t.Errorf("%s is a %s here, and %q in docs/observing.md", m[1], m[2], known[m[1]])
		}
	}
}
