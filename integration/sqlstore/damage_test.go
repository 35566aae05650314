package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/effectively-once/once/store/storetest"
)

// damages are statements that a client could run. SQLite keeps any value in any
// column: its damages are there as in tables that an earlier build has created,
// which do not check their numbers.
func damages(db *sql.DB, e engine) (all []storetest.Damage) {
	messages := []string{"header = 'x'", "header = '[1]'", "header = '{\"text\":{\"a\":1}}'", `header = '{"base64":{"%":"eA=="}}'`,
		"produced = 'yesterday'", "produced = '2009-02-30T00:00:00Z', created = -9223372036854775808",
		"header = '{', created = 9223372036854775807"}
	records := []string{"status = 9", "status = -1", "id = 'another'", "operation = operation, id = ''"}
	if e.dialect == sqlstore.SQLite {
		messages = append(messages, "attempts = 'many'", "created = 'now'", "created = 1.5", "reason = 1, header = 'x'",
			"produced = 7", "topic = topic, header = 1.5")
		records = append(records, "attempt = 'first'", "created = 'now'", "updated = 1.5", "flags = 'none'", "sum = 'x'",
			"status = 'done'")
	}
	consumers := []string{"seen = 0", "seen = -9223372036854775808", "seen = 9223372036854775807", "key_name = ''",
		"key_name = '', source = '', seen = 7", "name = ''"}
	positions := []string{"epoch = 0", "epoch = -9223372036854775808", "epoch = 9223372036854775807", "log_name = ''", "consumer = 'another'",
		"consumer_id = " + e.digest("consumer", "another"), "partition_name = ''"}
	if e.dialect == sqlstore.SQLite {
		consumers = append(consumers, "seen = 'now'", "seen = 1.5", "seen = x'00'")
		positions = append(positions, "epoch = 'first'", "epoch = 1.5", "epoch = x'00'", "log_offset = 'the end'", "log_offset = 1.5", "digest = 'x'",
			"digest = x'00'", "consumer_id = 'x'", "consumer_id = x'00'")
	}
	run := func(ctx context.Context, table, set, where string) error {
		ctx, cancel := context.WithTimeout(ctx, testenv.Patience)
		defer cancel()
		statement := fmt.Sprintf("UPDATE %s SET %s WHERE %s", table, set, where)
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if e.dialect == sqlstore.SQLite { // whose new tables check their numbers, and older ones do not
			defer conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA ignore_check_constraints = OFF")
			if _, err := conn.ExecContext(ctx, "PRAGMA ignore_check_constraints = ON"); err != nil {
				return err
			}
		}
		r, err := conn.ExecContext(ctx, statement)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			return fmt.Errorf("%d rows were damaged, %v:\n%s", n, err, statement)
		}
		return nil
	}
	for _, set := range messages {
		all = append(all, storetest.Damage{Name: "message: " + set,
			Outgoing: func(ctx context.Context, id string) error {
				return run(ctx, "once_outbox", set, fmt.Sprintf("id = '%s'", id))
			},
			Shelved: func(ctx context.Context, consumer, id string) error {
				return run(ctx, "once_shelf", set, fmt.Sprintf("consumer = '%s' AND message_id = '%s'", consumer, id))
			}})
	}
	for _, set := range consumers {
		all = append(all, storetest.Damage{Name: "consumer: " + set, Consumer: func(ctx context.Context, name string) (func(context.Context) error, error) {
			var source, keys string
			var seen int64
			where := "id = " + e.digest("consumer", name)
			err := db.QueryRowContext(ctx, "SELECT source, key_name, seen FROM once_consumer WHERE "+where).Scan(&source, &keys, &seen)
			if err != nil {
				return nil, err
			}
			undo := fmt.Sprintf("name = '%s', source = '%s', key_name = '%s', seen = %d", name, source, keys, seen)
			return func(ctx context.Context) error { return run(ctx, "once_consumer", undo, where) }, run(ctx, "once_consumer", set, where)
		}})
	}
	for _, set := range positions {
		all = append(all, storetest.Damage{Name: "position: " + set, Position: func(ctx context.Context, consumer, partition string) error {
			return run(ctx, "once_position", set, "id = "+e.digest("position", consumer, partition))
		}})
	}
	for _, set := range records {
		all = append(all, storetest.Damage{Name: "record: " + set, Record: func(ctx context.Context, k once.Key) error {
			return run(ctx, "once_record", set, e.isKey(k))
		}})
	}
	return all
}

// isKey is the condition for the row of a key, by its digest.
func (e engine) isKey(k once.Key) string {
	column := `"key"`
	if e.dialect == sqlstore.MySQL {
		column = "`key`"
	}
	return column + " = " + e.uuid(k.UUID())
}

// digest is the ID of a row by its names.
func (e engine) digest(parts ...string) string { return e.uuid(name.Digest(parts...)) }

func (e engine) uuid(id [16]byte) string {
	if e.dialect == sqlstore.PostgreSQL {
		return fmt.Sprintf("'%s'", name.Format(id))
	}
	return fmt.Sprintf("x'%x'", id)
}

// One damaged bit in the time until which a key is kept does not make finished
// work run again, and Forget does not delete the record.
func TestADamagedBitKeepsWorkDone(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		for bit := range 63 {
			id := fmt.Sprint("bit ", bit)
			rec, err := s.Claim(t.Context(), request(id, "a"))
			must(t, err)
			set := settlement(rec, once.Done)
			set.KeepOutcome, set.KeepKey = 0, 7*24*time.Hour
			must(t, s.Settle(t.Context(), set))
			xor := "key_until # (1::bigint << %d)"
			if e.dialect != sqlstore.PostgreSQL {
				xor = "(key_until | (1 << %[1]d)) - (key_until & (1 << %[1]d))"
			}
			mustExec(t, db, fmt.Sprintf("UPDATE once_record SET key_until = "+xor+" WHERE %s", bit, e.isKey(key(id))))
		}
		mustExec(t, db, fmt.Sprintf("UPDATE once_record SET key_until = NULL WHERE %s", e.isKey(key("bit 62"))))
		_, err := s.Forget(t.Context(), 1000)
		must(t, err)
		corrupt := 0
		for bit := range 63 {
			rec, err := s.Claim(t.Context(), request(fmt.Sprint("bit ", bit), "b"))
			if errors.Is(err, once.ErrCorrupt) {
				corrupt++
				continue
			}
			must(t, err)
			if rec.Status != once.Done && rec.Status != once.Expired {
				t.Errorf("after a flip of bit %d, the claim returned %v, attempt %d", bit, rec.Status, rec.Attempt)
			}
		}
		if corrupt < 3 {
			t.Errorf("%d of 63 flips were noticed", corrupt)
		}
	})
}

// A new table of SQLite refuses what is no whole number where one belongs, from
// whatever program. A body may be a text.
func TestSQLiteChecksNumbers(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		if e.dialect != sqlstore.SQLite {
			t.Skip("other databases have types")
		}
		s, db := e.migrated(t)
		must(t, s.Shelve(t.Context(), []store.Shelved{aside("1", "")}))
		put(t, s, db, out("1"))
		_, err := s.Claim(t.Context(), request("1", "a"))
		must(t, err)
		for table, columns := range map[string][]string{
			"once_outbox": {"attempts", "created", "due", "changed", "lane", "state"},
			"once_shelf":  {"attempts", "created", "updated", "due", "version", "state", "ended"},
			"once_record": {"attempt", "created", "updated", "status", "lease_until", "flags", "sum", "key_until"},
			"once_lane":   {"lane", "lease_until"},
		} {
			for _, column := range columns {
				for _, value := range []string{"'many'", "1.5", "x'00'"} {
					if _, err := db.ExecContext(t.Context(), fmt.Sprintf("UPDATE %s SET %s = %s", table, column, value)); err == nil {
						t.Errorf("%s of %s took %s", column, table, value)
					}
				}
			}
		}
		mustExec(t, db, "INSERT INTO once_outbox (id, topic, body) VALUES ('by hand', 'orders', 'a text')")
	})
}

// A position whose consumer_id is damaged and now another consumer's does not end
// with that one.
func TestRetiringAConsumerLeavesTheDamagedPositionOfAnotherAlone(t *testing.T) {
	onEach(t, func(t *testing.T, e engine) {
		s, db := e.migrated(t)
		at, err := s.OpenPosition(t.Context(), "c", "0")
		must(t, err)
		_, err = s.Register(t.Context(), store.Consumer{Name: "another", Source: "queue", Keys: "another"})
		must(t, err)
		mustExec(t, db, fmt.Sprintf("UPDATE once_position SET consumer_id = %s WHERE id = %s", e.digest("consumer", "another"), e.digest("position", "c", "0")))
		must(t, s.RetireConsumer(t.Context(), store.Retirement{Name: "another", As: store.RetiredSource(time.Now(), "ann", "gone")}))
		var epoch int64
		var log string
		must(t, db.QueryRowContext(t.Context(), "SELECT epoch, log_name FROM once_position").Scan(&epoch, &log))
		if epoch != at.Epoch || log != at.Log {
			t.Errorf("it has the epoch %d and the log %q, and had %d and %q", epoch, log, at.Epoch, at.Log)
		}
	})
}
