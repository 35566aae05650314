package wire_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Statements that are sent together are lost together. Those sent before are
// not.
func TestPipelineIsOneRequest(t *testing.T) {
	for name, test := range map[string]struct {
		action wire.Action
		rows   int
	}{"dropped": {wire.DropRequest, 1}, "swallowed": {wire.SwallowReply, 4}} {
		t.Run(name, func(t *testing.T) {
			proxy, dsn := wire.Between(t, testenv.Postgres(t), wire.Postgres)
			direct, conn := connect(t, testenv.Postgres(t)), connect(t, dsn)
			table := "wire_" + strings.ToLower(rand.Text())
			testenv.CheckPostgres(t, func(query string) (answer string, err error) {
				err = direct.QueryRow(t.Context(), query).Scan(&answer)
				return answer, err
			})
			if _, err := direct.Exec(t.Context(), "CREATE TABLE "+table+" (id int)"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = direct.Exec(context.Background(), "DROP TABLE "+table) })
			rule := proxy.On(wire.Runs("INSERT INTO "+table+" /* third"), test.action)
			pipe := new(pgx.Batch)
			pipe.Queue("INSERT INTO "+table+" VALUES ($1)", 0)
			if err := conn.SendBatch(t.Context(), pipe).Close(); err != nil {
				t.Fatal(err)
			}
			pipe = new(pgx.Batch)
			for i, mark := range []string{"first", "second", "third"} {
				pipe.Queue("INSERT INTO "+table+" /* "+mark+" */ VALUES ($1)", i)
			}
			if err := conn.SendBatch(t.Context(), pipe).Close(); err == nil {
				t.Error("the client got an answer")
			}
			wantHits(t, rule, 1)
			var rows int
			if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&rows); err != nil || rows != test.rows {
				t.Errorf("%d rows, want %d: %v", rows, test.rows, err)
			}
		})
	}
}

// The proxy recognizes a COPY and a cancellation.
func TestCopyAndCancel(t *testing.T) {
	proxy, dsn := wire.Between(t, testenv.Postgres(t), wire.Postgres)
	conn := connect(t, dsn)
	if _, err := conn.Exec(t.Context(), "CREATE TEMPORARY TABLE copied (id int)"); err != nil {
		t.Fatal(err)
	}
	proxy.On(wire.Any, wire.DelayReply(0), wire.Skip(1), wire.Always)
	n := 0
	source := pgx.CopyFromFunc(func() ([]any, error) {
		if n++; n > 1000 {
			return nil, nil
		}
		return []any{n}, nil
	})
	proxy.On(wire.Kind("CopyDone"), wire.Pass)
	if copied, err := conn.CopyFrom(t.Context(), pgx.Identifier{"copied"}, []string{"id"}, source); err != nil || copied != 1000 {
		t.Errorf("copied %d: %v", copied, err)
	}
	cancel := proxy.On(wire.Kind("Cancel"), wire.Pass)
	asleep := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(60)")
		asleep <- err
	}()
	for err := error(nil); ; {
		if cancelErr := conn.PgConn().CancelRequest(t.Context()); cancelErr != nil {
			t.Fatal(cancelErr)
		}
		select {
		case err = <-asleep:
			if err == nil || cancel.Hits() != 1 {
				t.Errorf("%v after %d cancellations", err, cancel.Hits())
			}
			return
		default:
		}
	}
}
