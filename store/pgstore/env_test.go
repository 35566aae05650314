package pgstore_test

import (
	"testing"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/jackc/pgx/v5"
)

// server returns the address of the test server, after checking that it is one.
func server(t testing.TB) string { return checked(t, testenv.Postgres(t)) }

// bouncer returns the address of the PgBouncer in front of it.
func bouncer(t testing.TB) string { return checked(t, testenv.PgBouncer(t)) }

func checked(t testing.TB, dsn string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	testenv.CheckPostgres(t, func(query string) (answer string, err error) {
		err = conn.QueryRow(t.Context(), query, pgx.QueryExecModeSimpleProtocol).Scan(&answer)
		return answer, err
	})
	return dsn
}
