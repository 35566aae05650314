//go:build linux

package publish

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestRowsOfOtherLanguages inserts rows by SQL alone: by psql on PostgreSQL,
// and by plain statements elsewhere. They need only an ID and a topic. Those of
// an ordering key have one lane and keep their order.
func TestRowsOfOtherLanguages(t *testing.T) {
	t.Parallel()
	beside(t, 3, []string{pgTable, pgRows, pgLog, mariaDB, sqlite}, func(t *testing.T, engine string) {
		w, p := newWorldOn(t, engine), newPress(t, 1)
		var script strings.Builder
		var ids []string
		add := func(id, key string, seq, lane int) {
			ids = append(ids, id)
			fmt.Fprintf(&script, "INSERT INTO made (id, ord, seq) VALUES ('%s', '%s', %d);\n", id, key, seq)
			fmt.Fprintf(&script, "INSERT INTO %s (lane, id, topic, ordering_key, body) "+
				"VALUES (%d, '%s', 'orders', '%s', '%d');\n", table, lane, id, key, seq)
		}
		for i := range 20 {
			add(fmt.Sprint("free", i), "", 0, i%16)
			add(fmt.Sprint("keyed", i), "k0", i+1, 7)
		}
		ids = append(ids, "least")
		fmt.Fprintf(&script, "INSERT INTO made (id, ord, seq) VALUES ('least', '', 0);\n")
		fmt.Fprintf(&script, "INSERT INTO %s (id, topic) VALUES ('least', 'orders');\n", table)
		fmt.Fprintf(&script, "INSERT INTO %s (id, topic, state, due) VALUES ('late', 'orders', 1, 1);\n", table)

		stop := run(t, w.relay(t, p))
		if w.Postgres() {
			psql(t, w.DSN, "BEGIN;\n"+script.String()+"COMMIT;\n")
		} else {
			must(t, w.own(t.Context(), func(x tx) error {
				for _, statement := range strings.Split(strings.TrimSpace(script.String()), ";\n") {
					if err := x.exec(strings.TrimSuffix(statement, ";")); err != nil {
						return fmt.Errorf("%s: %w", statement, err)
					}
				}
				return nil
			}))
		}
		p.await(t, append(ids, "late"))
		settled(t, patience, func() []string { return w.waiting(t) })
		stop()
		w.Exec(t, "INSERT INTO made (id, ord, seq) VALUES ('late', '', 0)")
		judge(w.made(t), p.all()).check(t, false)
	})
}

// TestNotifyOfOthers runs the SQL of docs/outbox-row.md that notifies relays,
// for a table whose name fits into a channel name and for one whose name does
// not.
func TestNotifyOfOthers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/outbox-row.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## NOTIFY\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```")
	if len(blocks) != 5 {
		t.Fatalf("%d parts of the section, want two pieces of SQL", len(blocks))
	}
	plain, computed := strings.TrimPrefix(blocks[1], "sql\n"), strings.TrimPrefix(blocks[3], "sql\n")
	const name = "'a_schema.with_a_long_prefix_outbox'"
	if !strings.Contains(computed, name) {
		t.Fatalf("there is no %s in %s", name, computed)
	}
	long := strings.Repeat("long", 15)
	for _, c := range []struct{ schema, ring string }{
		{"", plain},
		{"", strings.Replace(computed, name, "'public.once_outbox'", 1)},
		{long, strings.Replace(computed, name, "'"+long+".once_outbox'", 1)},
	} {
		pool, err := pgxpool.New(t.Context(), engines.New(t, pgTable).DSN)
		must(t, err)
		t.Cleanup(pool.Close)
		run := func(statement string) {
			_, err := pool.Exec(t.Context(), statement)
			must(t, err)
		}
		if c.schema != "" {
			run("CREATE SCHEMA " + c.schema)
		}
		s := pgstore.New(pool, &pgstore.Options{Schema: c.schema})
		must(t, s.Migrate(t.Context()))
		e, err := s.HearOutbox(t.Context())
		must(t, err)
		run(c.ring)
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		if err := e.Wait(ctx); err != nil {
			t.Errorf("nothing was heard of %s: %v", c.ring, err)
		}
		cancel()
		e.Close()
	}
}
