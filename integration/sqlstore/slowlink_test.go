package sqlstore_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/go-sql-driver/mysql"
)

// The time of round trips does not count as a wait for an open transaction.
func TestTripsOverASlowLinkAreNoWait(t *testing.T) {
	db := freshMariaDB(t)(t)
	must(t, sqlstore.New(db, sqlstore.MySQL, nil).Migrate(t.Context()))
	var database string
	must(t, db.QueryRow("SELECT DATABASE()").Scan(&database))
	proxy, dsn := wire.Between(t, testenv.MariaDB(t), wire.MySQL)
	config, err := mysql.ParseDSN(dsn)
	must(t, err)
	config.DBName = database
	slow := proxy.On(wire.Any, wire.Delay(80*time.Millisecond), wire.Always)
	s := sqlstore.New(open(t, "mysql", config.FormatDSN()), sqlstore.MySQL, nil)
	rec, err := s.Claim(t.Context(), request("free", "a"))
	if err != nil || rec.Status != once.Running || rec.Owner != token("a") {
		t.Errorf("the claim of a free key returned %+v, %v", rec, err)
	}
	if slow.Hits() == 0 {
		t.Error("nothing was slow")
	}
}
