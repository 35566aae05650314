package testenv_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/effectively-once/once/internal/testenv"
)

// verdict is a testing.TB that remembers how the test ended.
type verdict struct {
	testing.TB
	word, line string
}

func (v *verdict) Helper() {}

func (v *verdict) Skipf(format string, args ...any) { v.end("skip", format, args) }

func (v *verdict) Fatalf(format string, args ...any) { v.end("fatal", format, args) }

func (v *verdict) end(word, format string, args []any) {
	v.word, v.line = word, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// judge runs the body as a test of its own.
func judge(body func(testing.TB)) *verdict {
	v := &verdict{word: "pass"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		body(v)
	}()
	<-done
	return v
}

func TestMissingServerSkipsWithOneLineOrFailsWhenRequired(t *testing.T) {
	for name, accessor := range map[string]func(testing.TB) string{
		testenv.PostgresVar: testenv.Postgres, testenv.MariaDBVar: testenv.MariaDB, testenv.PgBouncerVar: testenv.PgBouncer,
		testenv.RabbitMQVar: testenv.RabbitMQ, testenv.RedisVar: testenv.Redis,
	} {
		get := func(tb testing.TB) { accessor(tb) }
		t.Setenv(name, "")

		t.Setenv(testenv.RequireVar, "")
		v := judge(get)
		if v.word != "skip" || !strings.Contains(v.line, "make test") || strings.Contains(v.line, "\n") {
			t.Errorf("%s: %s %q, want a skip with one line that says how to run it", name, v.word, v.line)
		}
		t.Setenv(testenv.RequireVar, "1")
		if v := judge(get); v.word != "fatal" || !strings.Contains(v.line, name) {
			t.Errorf("%s, required: %s %q, want a failure that names the variable", name, v.word, v.line)
		}

		t.Setenv(name, "dsn")
		if got := accessor(t); got != "dsn" {
			t.Errorf("%s: %q, want what the environment says", name, got)
		}
	}
}

func TestOnlyTheServerOfTheEnvironmentPasses(t *testing.T) {
	answer := func(dir string, err error) func(string) (string, error) {
		return func(string) (string, error) { return dir, err }
	}
	for _, c := range []struct {
		name, env, want string
		query           func(string) (string, error)
	}{
		{"ours", "/tmp/x/data", "pass", answer("/tmp/x/data", nil)},
		{"ours, with a slash", "/tmp/x/data", "pass", answer("/tmp/x/data/", nil)},
		{"another", "/tmp/x/data", "fatal", answer("/var/lib/data", nil)},
		{"below ours", "/tmp/x/data", "fatal", answer("/tmp/x/data/data", nil)},
		{"silent", "/tmp/x/data", "fatal", answer("", nil)},
		{"failing", "/tmp/x/data", "fatal", answer("/tmp/x/data", errors.New("refused"))},
		{"unknown to the environment", "", "fatal", answer("", nil)},
	} {
		t.Setenv(testenv.PostgresDataVar, c.env)
		t.Setenv(testenv.MariaDBDataVar, c.env)
		for _, check := range []func(testing.TB, func(string) (string, error)){testenv.CheckPostgres, testenv.CheckMariaDB} {
			if v := judge(func(tb testing.TB) { check(tb, c.query) }); v.word != c.want {
				t.Errorf("%s: %s %q, want %s", c.name, v.word, v.line, c.want)
			}
		}
	}
}

func TestRabbitMQIsKnownByTheNameOfItsCluster(t *testing.T) {
	for _, c := range []struct {
		name, env, want string
		properties      map[string]any
	}{
		{"ours", "once-1", "pass", map[string]any{"cluster_name": "once-1@machine", "product": "RabbitMQ"}},
		{"another", "once-1", "fatal", map[string]any{"cluster_name": "once-11@machine"}},
		{"nameless", "once-1", "fatal", map[string]any{"product": "RabbitMQ"}},
		{"odd", "once-1", "fatal", map[string]any{"cluster_name": 1}},
		{"silent", "once-1", "fatal", nil},
		{"unknown to the environment", "", "fatal", nil},
	} {
		t.Setenv(testenv.RabbitMQClusterVar, c.env)
		if v := judge(func(tb testing.TB) { testenv.CheckRabbitMQ(tb, c.properties) }); v.word != c.want {
			t.Errorf("%s: %s %q, want %s", c.name, v.word, v.line, c.want)
		}
	}
}

// "make test" does not start it, so that nothing requires it.
func TestWithoutAzuriteATestIsSkipped(t *testing.T) {
	t.Setenv(testenv.AzuriteVar, "")
	t.Setenv(testenv.RequireVar, "1")
	get := func(tb testing.TB) { testenv.Azurite(tb) }
	if v := judge(get); v.word != "skip" || !strings.Contains(v.line, "make test-azurite") {
		t.Errorf("%s %q, want a skip that says how to run it", v.word, v.line)
	}
	t.Setenv(testenv.AzuriteVar, "dsn")
	if got := testenv.Azurite(t); got != "dsn" {
		t.Errorf("%q, want what the environment says", got)
	}
}

func TestAzuriteIsKnownByItsAccount(t *testing.T) {
	for _, c := range []struct{ name, env, want, metadata string }{
		{"ours", "once1", "pass", "http://127.0.0.1:1/once1/$metadata#Tables"},
		{"another", "once1", "fatal", "http://127.0.0.1:1/once11/$metadata#Tables"},
		{"silent", "once1", "fatal", ""},
		{"odd", "once1", "fatal", ":"},
		{"unknown to the environment", "", "fatal", "http://127.0.0.1:1/once1/$metadata#Tables"},
	} {
		t.Setenv(testenv.AzuriteAccountVar, c.env)
		if v := judge(func(tb testing.TB) { testenv.CheckAzurite(tb, c.metadata) }); v.word != c.want {
			t.Errorf("%s: %s %q, want %s", c.name, v.word, v.line, c.want)
		}
	}
}

func TestRedisIsKnownByItsDirectory(t *testing.T) {
	for _, c := range []struct {
		name, env, want string
		config          map[string]string
	}{
		{"ours", "/tmp/x/data", "pass", map[string]string{"dir": "/tmp/x/data"}},
		{"another", "/tmp/x/data", "fatal", map[string]string{"dir": "/var/lib/redis"}},
		{"without a directory", "/tmp/x/data", "fatal", map[string]string{"port": "6379"}},
		{"silent", "/tmp/x/data", "fatal", nil},
		{"unknown to the environment", "", "fatal", nil},
	} {
		t.Setenv(testenv.RedisDataVar, c.env)
		if v := judge(func(tb testing.TB) { testenv.CheckRedis(tb, c.config) }); v.word != c.want {
			t.Errorf("%s: %s %q, want %s", c.name, v.word, v.line, c.want)
		}
	}
}

func TestEachServerIsAskedInItsOwnWords(t *testing.T) {
	t.Setenv(testenv.PostgresDataVar, "/pg")
	t.Setenv(testenv.MariaDBDataVar, "/maria")
	testenv.CheckPostgres(t, answers(map[string]string{"SHOW data_directory": "/pg"}))
	testenv.CheckMariaDB(t, answers(map[string]string{"SELECT @@datadir": "/maria/"}))
}

func answers(known map[string]string) func(string) (string, error) {
	return func(question string) (string, error) {
		if answer, ok := known[question]; ok {
			return answer, nil
		}
		return "", fmt.Errorf("syntax error: %s", question)
	}
}
