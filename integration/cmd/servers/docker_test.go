//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/effectively-once/once/integration/server"
)

// standIn is a fake docker that records its arguments and gives every service
// the same address.
const standIn = `#!/bin/sh
echo "$@" >> "$DOCKER_LOG"
case "$*" in
*" port "*) echo 127.0.0.1:4711 ;;
*" up "*) cat > "$DOCKER_LOG.yaml"; [ -n "$ONCE_PASSWORD" ] && [ -n "$ONCE_RUN" ] && exit "$DOCKER_UP" ;;
esac
`

func fakeDocker(t *testing.T, upExits string) (log func() string) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(standIn), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "log")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("DOCKER_LOG", path)
	t.Setenv("DOCKER_UP", upExits)
	return func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestContainersAreStartedAskedAndRemoved(t *testing.T) {
	log := fakeDocker(t, "0")
	if !dockerAnswers(t.Context()) {
		t.Fatal("docker does not answer")
	}
	c, err := startContainers(t.Context(), []server.Kind{server.MariaDB, server.PgBouncer, server.Postgres, server.RabbitMQ,
		server.Redis})
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Join(c.Env(), "\n")
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	told := strings.ReplaceAll(log(), "compose --project-name "+c.run+" --file - ", "")
	want := "info\nup --detach --wait mariadb pgbouncer postgres rabbitmq redis\nport mariadb 3306\nport pgbouncer 5432\n" +
		"port postgres 5432\nport rabbitmq 5672\nport redis 6379\ndown --volumes --timeout 10\n"
	if told != want {
		t.Errorf("docker was told:\n%s\nwant:\n%s", told, want)
	}
	postgres := "postgres://postgres:" + c.password + "@127.0.0.1:4711/postgres?sslmode=disable"
	wantEnv := "ONCE_TEST_POSTGRES=" + postgres + "\nONCE_TEST_POSTGRES_DATA=/tmp/" + c.run + "/data\nONCE_TEST_PGBOUNCER=" + postgres +
		"\nONCE_TEST_MARIADB=root:" + c.password + "@tcp(127.0.0.1:4711)/once\nONCE_TEST_MARIADB_DATA=/tmp/" + c.run + "/data" +
		"\nONCE_TEST_RABBITMQ=amqp://once:" + c.password + "@127.0.0.1:4711/\nONCE_TEST_RABBITMQ_CLUSTER=" + c.run +
		"\nONCE_TEST_REDIS=redis://:" + c.password + "@127.0.0.1:4711/0\nONCE_TEST_REDIS_DATA=/tmp/" + c.run + "/data"
	if env != wantEnv {
		t.Errorf("the environment is:\n%s\nwant:\n%s", env, wantEnv)
	}
	if file, err := os.ReadFile(os.Getenv("DOCKER_LOG") + ".yaml"); err != nil || string(file) != string(composeFile) {
		t.Errorf("docker did not get the compose file: %q, %v", file, err)
	}
}

func TestContainersThatDoNotStartAreRemoved(t *testing.T) {
	log := fakeDocker(t, "3")
	if _, err := startContainers(t.Context(), []server.Kind{server.MariaDB}); err == nil {
		t.Error("containers that did not start are taken for started")
	}
	if told := log(); !strings.Contains(told, " down --volumes") {
		t.Errorf("docker was told only:\n%s", told)
	}
}
