//go:build linux

package publish

import (
	"fmt"
	"strings"
	"testing"
)

// TestRowsOfOtherLanguages has rows inserted by SQL alone: by psql on PostgreSQL, and by bare statements elsewhere.
// They need no more than an ID and a topic; those of an ordering key have one lane, and keep their order.
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
		await(t, "nothing waits", func() bool { return w.waits(t) == 0 })
		stop()
		w.Exec(t, "INSERT INTO made (id, ord, seq) VALUES ('late', '', 0)")
		judge(w.made(t), p.all()).check(t, false)
	})
}
