// Package testenv gives tests the servers that "make test" started.
//
// An accessor returns a DSN that the servers tool put into the environment. If
// there is none, the test is skipped with a line that says how to run it. If
// ONCE_TEST_REQUIRE is 1, which the tool sets when it has started every server,
// the test fails instead, so that a complete run cannot skip tests silently.
//
// A DSN can be wrong: set by hand, or left over from a server whose port now
// belongs to another. Therefore a test asks the server for its identity before
// it creates or drops anything, with [CheckPostgres], [CheckMariaDB],
// [CheckRabbitMQ], [CheckRedis], [CheckAzurite] or [CheckKafka].
//
// The package has no driver, because the root module requires nothing.
package testenv

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// These are the environment variables, as the servers tool sets them.
const (
	RequireVar  = "ONCE_TEST_REQUIRE" // "1": a server that is missing is a failure, not a reason to skip
	PostgresVar = "ONCE_TEST_POSTGRES"
	MariaDBVar  = "ONCE_TEST_MARIADB"
	// PgBouncerVar names a PgBouncer in front of the server that PostgresVar names.
	PgBouncerVar = "ONCE_TEST_PGBOUNCER"
	// What SHOW data_directory and SELECT @@datadir must return.
	PostgresDataVar = "ONCE_TEST_POSTGRES_DATA"
	MariaDBDataVar  = "ONCE_TEST_MARIADB_DATA"
	RabbitMQVar     = "ONCE_TEST_RABBITMQ"
	// The prefix of the name of the cluster, up to the @.
	RabbitMQClusterVar = "ONCE_TEST_RABBITMQ_CLUSTER"
	RedisVar           = "ONCE_TEST_REDIS"
	// What CONFIG GET dir must return.
	RedisDataVar = "ONCE_TEST_REDIS_DATA"
	// PostgresVersionVar is the major version of the PostgreSQL that the servers tool
	// starts, 16, 17 or 18. Empty: that of Debian.
	PostgresVersionVar = "ONCE_TEST_POSTGRES_VERSION"
	// GaleraVar is "1" if tests may start clusters of Galera.
	GaleraVar = "ONCE_TEST_GALERA"
	// RabbitMQsVar is "1" if tests may start clusters of RabbitMQ.
	RabbitMQsVar = "ONCE_TEST_RABBITMQS"
	// BrowserVar is "1" if tests may use Chromium.
	BrowserVar = "ONCE_TEST_BROWSER"
	// SpinVar is "1" if tests may use Spin.
	SpinVar    = "ONCE_TEST_SPIN"
	AzuriteVar = "ONCE_TEST_AZURITE"
	// The name of the account, which is in the metadata of each answer.
	AzuriteAccountVar = "ONCE_TEST_AZURITE_ACCOUNT"
	DynamoDBVar       = "ONCE_TEST_DYNAMODB"
	// The directory that it was started in.
	DynamoDBHomeVar = "ONCE_TEST_DYNAMODB_HOME"
	KafkaVar        = "ONCE_TEST_KAFKA"
	// The name of the cluster.
	KafkaClusterVar = "ONCE_TEST_KAFKA_CLUSTER"
	SQSVar          = "ONCE_TEST_SQS"
	// The name of the directory that it was started in, which a queue has.
	SQSHomeVar = "ONCE_TEST_SQS_HOME"
)

// Patience is how long a test waits for something that should take no time
// before it fails. It does not assert speed: on a busy machine everything takes
// long.
const Patience = 4 * time.Minute

// Variables returns all environment variables.
func Variables() []string {
	return []string{RequireVar, PostgresVar, MariaDBVar, PgBouncerVar, PostgresDataVar, MariaDBDataVar,
		RabbitMQVar, RabbitMQClusterVar, RedisVar, RedisDataVar, AzuriteVar, AzuriteAccountVar, DynamoDBVar, DynamoDBHomeVar, GaleraVar,
		RabbitMQsVar, BrowserVar, SpinVar,
		KafkaVar, KafkaClusterVar, SQSVar, SQSHomeVar}
}

// Postgres returns the URL of a PostgreSQL superuser, or ends the test. The
// server is shared: each test uses its own schema. Call CheckPostgres on each
// connection first.
func Postgres(t testing.TB) string {
	t.Helper()
	return dsn(t, "PostgreSQL", PostgresVar)
}

// PgBouncer is like [Postgres] through a PgBouncer in transaction mode. It may
// not know the prepared statements of a client, so a pgx connection needs
// QueryExecModeExec, or another mode that prepares nothing.
func PgBouncer(t testing.TB) string {
	t.Helper()
	return dsn(t, "PgBouncer", PgBouncerVar)
}

// MariaDB returns a DSN for github.com/go-sql-driver/mysql, without parameters,
// of a user with all privileges and of the database "once", or ends the test.
// Call CheckMariaDB on each connection first.
func MariaDB(t testing.TB) string {
	t.Helper()
	return dsn(t, "MariaDB", MariaDBVar)
}

// RabbitMQ returns the URL, which ends with a slash, of a RabbitMQ and of a
// user with all permissions, or ends the test. The server is shared: each test
// uses its own queues and exchanges. Call CheckRabbitMQ on each connection
// first.
func RabbitMQ(t testing.TB) string {
	t.Helper()
	return dsn(t, "RabbitMQ", RabbitMQVar)
}

// Redis returns the URL, which ends with the number of the database, of a Redis
// that allows every command, or ends the test. The server is shared: each test
// uses its own prefix of keys. Call CheckRedis on each client first.
func Redis(t testing.TB) string {
	t.Helper()
	return dsn(t, "Redis", RedisVar)
}

// Galera skips a test that starts clusters of Galera, which takes half a minute
// each, unless "make test-galera" runs it.
func Galera(t testing.TB) {
	t.Helper()
	if os.Getenv(GaleraVar) != "1" {
		t.Skipf("starts a cluster of Galera: run it under %q", "make test-galera")
	}
}

// RabbitMQs skips a test that starts clusters of RabbitMQ, which takes half a
// minute each, unless "make test-rabbitmq" runs it.
func RabbitMQs(t testing.TB) {
	t.Helper()
	if os.Getenv(RabbitMQsVar) != "1" {
		t.Skipf("starts a cluster of RabbitMQ: run it under %q", "make test-rabbitmq")
	}
}

// Browser skips a test that uses Chromium, unless "make test-browser" runs it.
func Browser(t testing.TB) {
	t.Helper()
	if os.Getenv(BrowserVar) != "1" {
		t.Skipf("uses Chromium: run it under %q", "make test-browser")
	}
}

// Spin skips a test that uses Spin, unless "make test-models" runs it.
func Spin(t testing.TB) {
	t.Helper()
	if os.Getenv(SpinVar) != "1" {
		t.Skipf("uses Spin: run it under %q", "make test-models")
	}
}

// Azurite returns the connection string of an Azurite with a table service, or
// skips the test. "make test" does not start it, because npm installs it, and
// "make test-azurite" does. The server is shared: each test uses its own table.
// Call CheckAzurite on each client first.
func Azurite(t testing.TB) string {
	t.Helper()
	value := os.Getenv(AzuriteVar)
	if value == "" {
		t.Skipf("needs Azurite: run it under %q", "make test-azurite")
	}
	return value
}

// DynamoDB returns the URL of an imitation of DynamoDB, or skips the test: "make
// test" does not start it. The server is shared: each test uses its own tables.
// It ends the test if the server was not started for tests.
func DynamoDB(t testing.TB) string {
	t.Helper()
	address := os.Getenv(DynamoDBVar)
	if address == "" {
		t.Skip("needs an imitation of DynamoDB: run it under \"make test-dynamodb\"")
	}
	check(t, func(path string) (string, error) {
		response, err := http.Get(address + path)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	}, "/identity", DynamoDBHomeVar)
	return address
}

// SQS returns the endpoint of an imitation of SQS, or skips the test: "make test"
// does not start it. The server is shared: each test uses its own queues. It ends
// the test if the server was not started for tests.
func SQS(t testing.TB) string {
	t.Helper()
	address := os.Getenv(SQSVar)
	if address == "" {
		t.Skip("needs an imitation of SQS: run it under \"make test-sqs\"")
	}
	home := os.Getenv(SQSHomeVar)
	check(t, func(query string) (string, error) {
		response, err := http.Get(address + query)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && home != "" && strings.Contains(string(text), "/"+home+"</QueueUrl>") {
			return home, nil
		}
		return string(text), err
	}, "/?Action=ListQueues&QueueNamePrefix="+url.QueryEscape(home), SQSHomeVar)
	return address
}

// CheckPostgres ends the test unless query, which runs a query for one row with
// one column, reaches the server that was started for tests. It works through
// PgBouncer too.
func CheckPostgres(t testing.TB, query func(string) (string, error)) {
	t.Helper()
	check(t, query, "SHOW data_directory", PostgresDataVar)
}

// CheckMariaDB is like CheckPostgres, for MariaDB.
func CheckMariaDB(t testing.TB, query func(string) (string, error)) {
	t.Helper()
	check(t, query, "SELECT @@datadir", MariaDBDataVar)
}

// CheckRabbitMQ ends the test unless props, which the server sends when a
// connection opens, are those of the server that was started for tests.
func CheckRabbitMQ(t testing.TB, properties map[string]any) {
	t.Helper()
	check(t, func(property string) (string, error) {
		name, _ := properties[property].(string)
		node, _, _ := strings.Cut(name, "@") // the name of the machine follows
		return node, nil
	}, "cluster_name", RabbitMQClusterVar)
}

// CheckRedis ends the test unless config, the answer to CONFIG GET dir, is that
// of the server that was started for tests.
func CheckRedis(t testing.TB, config map[string]string) {
	t.Helper()
	check(t, func(string) (string, error) { return config["dir"], nil }, "CONFIG GET dir", RedisDataVar)
}

// CheckAzurite is like CheckRedis, for metadata, the odata.metadata of the
// answer to a query for tables: it is a URL, whose path begins with the account.
func CheckAzurite(t testing.TB, metadata string) {
	t.Helper()
	check(t, func(string) (string, error) {
		u, err := url.Parse(metadata)
		if err != nil {
			return "", err
		}
		account, _, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
		return account, nil
	}, "odata.metadata", AzuriteAccountVar)
}

// Kafka returns the address of a Kafka of one node, or skips the test: "make test"
// does not start it, because Maven fetches it, and "make test-kafka" does. The
// server is shared: each test uses its own topics and groups. Call CheckKafka on
// each cluster first.
func Kafka(t testing.TB) string {
	t.Helper()
	address := os.Getenv(KafkaVar)
	if address == "" {
		t.Skipf("needs a Kafka: run it under %q", "make test-kafka")
	}
	return address
}

// CheckKafka ends the test unless cluster, of the answer to a request for
// metadata, is that of the server that was started for tests.
func CheckKafka(t testing.TB, cluster string) {
	t.Helper()
	check(t, func(string) (string, error) { return cluster, nil }, "the name of the cluster", KafkaClusterVar)
}

func dsn(t testing.TB, server, variable string) string {
	t.Helper()
	value := os.Getenv(variable)
	switch {
	case value != "":
	case os.Getenv(RequireVar) == "1":
		t.Fatalf("%s=1, but %s is empty: run it under \"make test\", which sets both", RequireVar, variable)
	default:
		t.Skipf("needs %s: run it under \"make test\"", server)
	}
	return value
}

func check(t testing.TB, query func(string) (string, error), question, variable string) {
	t.Helper()
	want := os.Getenv(variable)
	if want == "" {
		t.Fatalf("%s is empty, so nothing says whose server this is: run it under \"make test\"", variable)
	}
	got, err := query(question)
	if err != nil {
		t.Fatalf("%s: %v", question, err)
	}
	if filepath.Clean(got) != filepath.Clean(want) { // MariaDB ends its answer with a slash
		t.Fatalf("%s answers %q, not %q: this server was not started for tests, nothing was changed on it", question, got, want)
	}
}

// Await polls until a condition holds, and fails the test if that takes longer
// than [Patience].
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	end := time.After(Patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-end:
			t.Fatal("waited in vain: " + what)
		case <-tick.C:
		}
	}
}

// WithSettings sets parameters of a PostgreSQL URL, each of the form name=value
// with special characters as in a query.
func WithSettings(dsn string, settings ...string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	added, err := url.ParseQuery(strings.Join(settings, "&"))
	if err != nil {
		return "", err
	}
	q := u.Query()
	for name, values := range added {
		q[name] = values
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // to PostgreSQL, a + is no space
	return u.String(), nil
}
