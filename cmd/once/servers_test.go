package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/go-sql-driver/mysql"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/dynamostore"
	"github.com/effectively-once/once/store/natsstore"
	"github.com/effectively-once/once/store/tablestore"
)

// servers are where the scripts run besides SQLite: each returns the URL of a place that is its own.
var servers = map[string]func(testing.TB) string{"postgres": freshPostgres, "mariadb": freshMariaDB}

func TestScriptsOnServers(t *testing.T) {
	for name, fresh := range servers {
		t.Run(name, func(t *testing.T) {
			fresh(t) // or skip
			testscript.Run(t, testscript.Params{
				Files:               []string{"testdata/servers.txtar"},
				RequireExplicitExec: true,
				Setup: func(e *testscript.Env) error {
					return at(e, fresh(e.T().(testing.TB)))
				},
			})
		})
	}
}

// keyStores are stores without tables.
var keyStores = map[string]func(testing.TB) string{"redis": freshRedis, "dynamodb": freshDynamo, "cosmosdb": freshCosmos,
	"azurite": freshAzurite, "nats": freshNATS}

func TestScriptsOnStoresWithoutTables(t *testing.T) {
	for name, fresh := range keyStores {
		t.Run(name, func(t *testing.T) {
			fresh(t) // or skip
			testscript.Run(t, testscript.Params{
				Files:               []string{"testdata/keystores.txtar"},
				RequireExplicitExec: true,
				Condition: func(cond string) (bool, error) {
					return cond == "outbox" && hasOutbox(name) || cond == "positions" && hasPositions(name), nil
				},
				Setup: func(e *testscript.Env) error {
					for name, value := range awsEnvironment {
						e.Setenv(name, value)
					}
					return at(e, fresh(e.T().(testing.TB)))
				},
			})
		})
	}
}

// hasOutbox reports whether a key store has an outbox.
func hasOutbox(name string) bool { return name != "nats" }

// hasPositions reports whether a key store writes the shelf and positions of
// consumers in transactions of the work.
func hasPositions(name string) bool { return name == "redis" || name == "dynamodb" }

func TestServeOnStoresWithoutTables(t *testing.T) {
	for name, fresh := range keyStores {
		t.Run(name+"/parks", func(t *testing.T) { from := fresh(t); serveParks(t, from, open(t, from)) })
		t.Run(name+"/asks", func(t *testing.T) { from := fresh(t); serveAsks(t, from, open(t, from)) })
		t.Run(name+"/looks at the outbox", func(t *testing.T) {
			from := fresh(t)
			abandon(t, open(t, from), "mail")
			s := startService(t, from, "[reconcile]\npark = [\"mail\"]\n[janitor]\n")
			s.await("/readyz", "ready")
			s.await("/metrics", `once_store_ready\{once_name="serve"\} 1`)
			s.await("/metrics", `once_janitor_looks_total\{once_name="serve"\} [1-9]`)
			if _, text := s.get("/metrics"); strings.Contains(text, "once_outbox_depth") != hasOutbox(name) {
				t.Errorf("the metrics are:\n%s", text)
			}
			s.stop()
		})
	}
}

func TestDoctorOnDynamoDB(t *testing.T) {
	at := open(t, freshDynamo(t))
	if names := examine(t, at); !slices.Equal(names, []string{"recovery-off"}) {
		t.Errorf("a table as it should be: %v", names)
	}
	at = open(t, freshDynamo(t)+"&index=open&expiry=deleted")
	if names := examine(t, at); !slices.Equal(names, []string{"index-missing", "expiry-off", "recovery-off", "not-checked", "not-checked"}) {
		t.Errorf("a table without an index, which therefore lists neither keys nor messages, and an expiry: %v", names)
	}
}

func TestDoctorOnCosmosDB(t *testing.T) {
	if names := examine(t, open(t, freshCosmos(t))); !slices.Equal(names, []string{"write-regions-not-seen"}) {
		t.Errorf("a container as it should be: %v", names)
	}
	if names := examine(t, open(t, cosmosContainer(t, nil))); !slices.Contains(names, "container-ttl") {
		t.Errorf("a container without a time to live: %v", names)
	}
}

// freshCosmos starts a fake, because Cosmos DB has no server that runs here.
func freshCosmos(t testing.TB) string {
	t.Helper()
	forever := int32(-1)
	return cosmosContainer(t, &forever)
}

func cosmosContainer(t testing.TB, ttl *int32) string {
	t.Helper()
	server := fakecosmos.New()
	t.Cleanup(server.Close)
	key, err := azcosmos.NewKeyCredential(fakecosmos.Key)
	if err != nil {
		t.Fatal(err)
	}
	client, err := azcosmos.NewClientWithKey(server.URL, key, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateDatabase(t.Context(), azcosmos.DatabaseProperties{ID: "shop"}, nil); err != nil {
		t.Fatal(err)
	}
	database, err := client.NewDatabase("shop")
	if err != nil {
		t.Fatal(err)
	}
	is := azcosmos.ContainerProperties{ID: "keys", DefaultTimeToLive: ttl,
		PartitionKeyDefinition: azcosmos.PartitionKeyDefinition{Paths: []string{"/customer"}}}
	if _, err := database.CreateContainer(t.Context(), is, nil); err != nil {
		t.Fatal(err)
	}
	u := url.URL{Scheme: "cosmosdb", User: url.UserPassword("", fakecosmos.Key), Host: strings.TrimPrefix(server.URL, "http://"),
		Path: "/shop/keys", RawQuery: "insecure=true"}
	return u.String()
}

func TestDoctorOnAzurite(t *testing.T) {
	if names := examine(t, open(t, freshAzurite(t))); len(names) > 0 {
		t.Errorf("a table as it should be: %v", names)
	}
}

func TestDoctorOnNATS(t *testing.T) {
	if names := examine(t, open(t, freshNATS(t))); !slices.Equal(names, []string{"bucket-alone", "sync-interval-not-seen"}) {
		t.Errorf("a bucket as it should be on one server: %v", names)
	}
}

func freshNATS(t testing.TB) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		NoLog: true, NoSigs: true, Authorization: "secret/of the test"})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(testTime) {
		t.Fatal("the server does not come up")
	}
	at := "nats://" + url.UserPassword("", "secret/of the test").String() + "@" + s.Addr().String() + "/keys"
	if err := open(t, at).Store.(*natsstore.Store).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return at
}

func freshAzurite(t testing.TB) string {
	t.Helper()
	given := make(map[string]string)
	for part := range strings.SplitSeq(testenv.Azurite(t), ";") {
		name, value, _ := strings.Cut(part, "=")
		given[name] = value
	}
	at, err := url.Parse(given["TableEndpoint"])
	if err != nil {
		t.Fatal(err)
	}
	testenv.CheckAzurite(t, at.String()) // the name of its account is its own
	u := url.URL{Scheme: "azuretables", User: url.UserPassword(given["AccountName"], given["AccountKey"]), Host: at.Host,
		Path: at.Path + "/cmd" + strings.ToLower(rand.Text()), RawQuery: "insecure=true"}
	if err := open(t, u.String()).Store.(*tablestore.Store).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return u.String()
}

// freshDynamo starts a fake, because DynamoDB Local is not among the servers that
// all tests have.
func freshDynamo(t testing.TB) string {
	t.Helper()
	server := httptest.NewServer(new(dynamofake.Server))
	t.Cleanup(server.Close)
	for name, value := range awsEnvironment {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	at := "dynamodb://once?" + url.Values{"region": {"local"}, "endpoint": {server.URL}}.Encode()
	if err := open(t, at).Store.(*dynamostore.Store).CreateTable(t.Context()); err != nil {
		t.Fatal(err)
	}
	return at
}

var awsEnvironment = map[string]string{"AWS_ACCESS_KEY_ID": "once", "AWS_SECRET_ACCESS_KEY": "once"}

func TestDoctorOnRedis(t *testing.T) {
	at := open(t, freshRedis(t))
	if names := examine(t, at); len(names) > 0 {
		t.Errorf("a server as it should be: %v", names)
	}
	for _, c := range []struct{ setting, value, finds string }{
		{"maxmemory-policy", "allkeys-lru", "eviction"},
		{"appendfsync", "everysec", "fsync"},
		{"appendonly", "no", "append-only"},
		{"maxmemory", "1mb", "memory"},
	} {
		was, err := at.Redis.ConfigGet(t.Context(), c.setting).Result()
		if err != nil {
			t.Fatal(err)
		}
		if err := at.Redis.ConfigSet(t.Context(), c.setting, c.value).Err(); err != nil {
			t.Fatal(err)
		}
		if names := examine(t, at); !slices.Contains(names, c.finds) {
			t.Errorf("%s %s: %v", c.setting, c.value, names)
		}
		if err := at.Redis.ConfigSet(t.Context(), c.setting, was[c.setting]).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func freshRedis(t testing.TB) string {
	t.Helper()
	u, err := url.Parse(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = url.Values{"prefix": {"cmd_" + strings.ToLower(rand.Text()) + ":"}}.Encode()
	at := open(t, u.String())
	config, err := at.Redis.ConfigGet(t.Context(), "dir").Result()
	if err != nil {
		t.Fatal(err)
	}
	testenv.CheckRedis(t, config)
	return u.String()
}

func TestDoctorOnServers(t *testing.T) {
	for name, fresh := range servers {
		t.Run(name, func(t *testing.T) { examineDamage(t, fresh(t), name) })
	}
	t.Run("partitions", func(t *testing.T) {
		from := freshPostgres(t)
		at := open(t, from+"&partition=24h")
		if err := at.Tables.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if names := examine(t, at); slices.Contains(names, "schema") || slices.Contains(names, "schema-drift") {
			t.Errorf("with partitions: %v", names)
		}
		if now, err := open(t, from).Tables.Schema(t.Context()); err != nil || now.Misfit == nil ||
			!strings.Contains(now.Misfit.Error(), "add partition=24h") {
			t.Errorf("without partition in the URL: %+v %v", now, err)
		}
	})
	t.Run("settings", func(t *testing.T) {
		postgres, mariadb := freshPostgres(t), freshMariaDB(t)
		mariadb += map[bool]string{true: "&", false: "?"}[strings.Contains(mariadb, "?")]
		for from, want := range map[string]string{
			postgres + "&synchronous_commit=off":            "synchronous_commit-off",
			postgres + "&default_transaction_read_only=on":  "read-only",
			mariadb + "autocommit=0":                        "autocommit-off",
			mariadb + "completion_type=CHAIN":               "completion-type",
			mariadb + "tx_isolation=%27READ-UNCOMMITTED%27": "read-uncommitted",
		} {
			if names := examine(t, open(t, from)); !slices.Contains(names, want) {
				t.Errorf("found %v, not %s", names, want)
			}
		}
	})
	t.Run("synchronous_commit of a role", func(t *testing.T) {
		at := open(t, freshPostgres(t))
		role := "cmd_" + strings.ToLower(rand.Text())
		t.Cleanup(func() { at.Tables.DB.Exec("DROP ROLE IF EXISTS " + role) })
		for _, statement := range []string{"CREATE ROLE " + role, "ALTER ROLE " + role + " SET synchronous_commit = false"} {
			if _, err := at.Tables.DB.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
		if names := examine(t, at); !slices.Contains(names, "synchronous_commit-off-for-roles") {
			t.Errorf("false is off, and found were %v", names)
		}
	})
	t.Run("wal_level", func(t *testing.T) {
		at := open(t, freshPostgres(t)+"&outbox=log-only")
		if err := at.Tables.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		level := ""
		if err := at.Tables.DB.QueryRow("SHOW wal_level").Scan(&level); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "slot-missing", false: "wal-level"}[level == "logical"]
		if names := examine(t, at); !slices.Contains(names, want) {
			t.Errorf("with wal_level %s: %v, want %s", level, names, want)
		}
	})
}

// A server that was promoted says so. That of the tests was not, so its functions are overlaid by others.
func TestDoctorSeesAFailoverOnServers(t *testing.T) {
	from, at, overlay := tablesOnPostgres(t)
	promoted := func(timeline, modified, last string) []doctor.Finding {
		t.Helper()
		for _, statement := range []string{
			"CREATE OR REPLACE FUNCTION " + overlay + ".pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS $$SELECT '" + timeline + "0000000000000001'$$",
			"CREATE OR REPLACE FUNCTION " + overlay + ".pg_ls_waldir() RETURNS TABLE (name text, modification timestamptz) LANGUAGE sql AS $$" +
				"SELECT '" + timeline + ".history', " + modified + "$$",
			"CREATE OR REPLACE FUNCTION " + overlay + ".pg_last_xact_replay_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT " + last + "$$",
		} {
			if _, err := at.Tables.DB.Exec(statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		report, err := doctor.Examine(t.Context(), open(t, from+"&search_path="+overlay+",pg_catalog"))
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(report.Findings, func(f doctor.Finding) bool { return f.Name != "failover-happened" && f.Name != "not-checked" })
	}
	for _, test := range []struct {
		timeline, modified, last string
		severity                 doctor.Severity
		what, means              string
	}{
		{"00000001", "now()", "now()", "", "", ""},
		{"0000000A", "now()", "timestamptz '2026-11-22 14:03:00Z'", doctor.Warning, "timeline 10", "is of 2026-11-22T14:03:00Z"},
		{"00000002", "timestamptz '2020-11-22 14:03:00Z'", "timestamptz '2020-11-22 14:02:00Z'", doctor.Note, "at 2020-11-22T14:03:00Z", "is of 2020-11-22T14:02:00Z"},
		{"00000002", "timestamptz '2020-11-22 14:03:00Z'", "now()", doctor.Note, "at 2020-11-22T14:03:00Z", "can no longer be determined"},
		{"00000002", "NULL::timestamptz", "NULL::timestamptz", doctor.Note, "a role in pg_monitor", "can no longer be determined"},
	} {
		found := promoted(test.timeline, test.modified, test.last)
		if test.severity == "" {
			if len(found) > 0 {
				t.Errorf("on timeline 1: %+v", found)
			}
			continue
		}
		if len(found) != 1 || found[0].Severity != test.severity || !strings.Contains(found[0].What, test.what) ||
			!strings.Contains(found[0].Means, test.means) {
			t.Errorf("%+v has %+v", test, found)
		}
	}
}

// Whether commits wait for a standby: the views and settings of the server of the tests, which has none, are overlaid.
func TestDoctorSeesStandbysOnServers(t *testing.T) {
	from, at, overlay := tablesOnPostgres(t)
	for _, test := range []struct {
		standby, slot string // what is fed, and what kind of slot it reads by
		name          string // of the program that is fed
		names, commit string
		what          string
	}{
		{"", "", "", "", "on", ""},
		{"streaming", "physical", "s1", "", "on", "Standbys are connected (1), but no commit waits for one."},
		{"streaming", "physical", "s1", "s1", "on", ""},
		{"streaming", "physical", "s1", "s1", "local", "synchronous_commit is local"},
		{"streaming", "physical", "s1", "s1", "remote_write", "synchronous_commit is remote_write"},
		{"streaming", "logical", "relay", "", "on", ""}, // who reads the outbox
		{"streaming", "physical", "pg_receivewal", "", "on", ""},
		{"backup", "physical", "pg_basebackup", "", "on", ""},
	} {
		for _, statement := range []string{
			"CREATE OR REPLACE VIEW " + overlay + ".pg_stat_replication AS SELECT 7 AS pid, '" + test.standby + "'::text AS state, '" + test.name + "'::text AS application_name WHERE '" + test.standby + "' <> ''",
			"CREATE OR REPLACE VIEW " + overlay + ".pg_replication_slots AS SELECT 7 AS active_pid, '" + test.slot + "'::text AS slot_type",
			"CREATE OR REPLACE FUNCTION " + overlay + ".current_setting(text) RETURNS text LANGUAGE sql AS $$SELECT CASE $1 " +
				"WHEN 'synchronous_standby_names' THEN '" + test.names + "' WHEN 'synchronous_commit' THEN '" + test.commit + "' " +
				"ELSE pg_catalog.current_setting($1) END$$",
		} {
			if _, err := at.Tables.DB.Exec(statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		report, err := doctor.Examine(t.Context(), open(t, from+"&search_path="+overlay+",pg_catalog"))
		if err != nil {
			t.Fatal(err)
		}
		what := ""
		for _, f := range report.Findings {
			if f.Name == "failover-loses-commits" || f.Name == "not-checked" {
				what += f.What
			}
		}
		if !strings.Contains(what, test.what) || (what == "") != (test.what == "") {
			t.Errorf("%+v: found %q", test, what)
		}
	}
}

// examineDamage takes an index and a column away, and other things that a doctor has to see.
func examineDamage(t *testing.T, from, server string) {
	if err := seedAt(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	at := open(t, from)
	healthy := examine(t, at)
	for _, name := range []string{"not-checked", "schema", "schema-drift", "engine", "replica", "read-only", "clock", "forget-behind"} {
		if slices.Contains(healthy, name) {
			t.Errorf("found without reason: %s in %v", name, healthy)
		}
	}
	for _, name := range []string{"parked-keys", "parked-messages", "outbox-stuck", "outbox-no-relay"} {
		if !slices.Contains(healthy, name) {
			t.Errorf("not found: %s in %v", name, healthy)
		}
	}
	relay := [16]byte{7, 15: 9}
	want, err := need[store.Relayable](at).LeaseLanes(t.Context(), relay, time.Hour, []int{0, 3})
	if err != nil {
		t.Fatal(err)
	}
	got, err := at.Tables.Leases(t.Context())
	if err != nil || got.Relays != 1 || got.Lanes[3].Relay != want.Lanes[3].Relay || got.Lanes[3].Left <= 0 {
		t.Errorf("leases are %+v and %v, want %+v", got, err, want)
	}
	drop := "DROP INDEX " + at.Tables.Names.Named("record_due")
	if server == "mariadb" {
		drop = "ALTER TABLE " + at.Tables.Names.Table() + " DROP INDEX once_record_due"
	}
	for _, statement := range []string{drop, "ALTER TABLE " + at.Tables.Names.Shelf() + " DROP COLUMN reason",
		"ALTER TABLE " + at.Tables.Names.Relays() + " RENAME TO once_aside",
		"CREATE TABLE " + at.Tables.Names.Relays() + " AS SELECT * FROM " + at.Tables.Names.Named("aside")} {
		if _, err := at.Tables.DB.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	report, err := doctor.Examine(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	missing := "Missing or unusable: the column reason of once_shelf, the index once_record_due, " +
		"the unique key id of once_relay."
	if !slices.ContainsFunc(report.Findings, func(f doctor.Finding) bool { return f.What == missing }) {
		t.Errorf("the damage is not seen: %+v", report.Findings)
	}
}

func open(t testing.TB, from string) *target.Target {
	t.Helper()
	at, err := target.Open(context.Background(), from, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Close() })
	return at
}

func examine(t *testing.T, at *target.Target) (names []string) {
	t.Helper()
	report, err := doctor.Examine(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		names = append(names, f.Name)
		if f.Name == "not-checked" {
			t.Log(f.What)
		}
	}
	return names
}

func freshPostgres(t testing.TB) string {
	t.Helper()
	from := testenv.Postgres(t)
	at := open(t, from)
	testenv.CheckPostgres(t, asker(at.Tables.DB))
	schema := "cmd_" + strings.ToLower(rand.Text())
	t.Cleanup(func() { at.Tables.DB.Exec("DROP SCHEMA IF EXISTS " + schema + " CASCADE") })
	u, err := url.Parse(from)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("schema", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// tablesOnPostgres makes the tables in a schema of their own.
func tablesOnPostgres(t *testing.T) (from string, at *target.Target, schema string) {
	t.Helper()
	from = freshPostgres(t)
	at = open(t, from)
	if err := at.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(from)
	if err != nil {
		t.Fatal(err)
	}
	return from, at, u.Query().Get("schema")
}

func freshMariaDB(t testing.TB) string {
	t.Helper()
	config, err := mysql.ParseDSN(testenv.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	u := url.URL{Scheme: "mysql", User: url.UserPassword(config.User, config.Passwd), Host: config.Addr, Path: "/" + config.DBName}
	if config.Net == "unix" {
		u.Host, u.RawQuery = "localhost", "socket="+url.QueryEscape(config.Addr)
	}
	at := open(t, u.String())
	testenv.CheckMariaDB(t, asker(at.Tables.DB))
	database := "cmd_" + strings.ToLower(rand.Text())
	if _, err := at.Tables.DB.Exec("CREATE DATABASE " + database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.Tables.DB.Exec("DROP DATABASE IF EXISTS " + database) })
	u.Path = "/" + database
	return u.String()
}

func asker(db *sql.DB) func(string) (string, error) {
	return func(query string) (answer string, err error) {
		err = db.QueryRow(query).Scan(&answer)
		return answer, err
	}
}
