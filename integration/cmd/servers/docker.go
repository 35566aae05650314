//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/testenv"
)

//go:embed compose.yaml
var composeFile []byte

// containers are the servers in Docker, for machines where packages may not be installed.
//
// Only the commands that are sent to Docker have been tested, against a stand-in: no engine was at hand, so neither
// the images nor the readiness of what is in them have been seen to work. If the tool is killed, the containers stay,
// and "docker compose ls" shows them. Tests that kill and pause servers of their own still need the packages, so
// ONCE_TEST_REQUIRE is not set and they skip.
type containers struct {
	run      string // name of the project, of the data directories, and of the RabbitMQ node
	password string
	kinds    []server.Kind
	address  map[server.Kind]string
}

func dockerAnswers(ctx context.Context) bool {
	return exec.CommandContext(ctx, "docker", "info").Run() == nil
}

func startContainers(ctx context.Context, kinds []server.Kind) (*containers, error) {
	c := &containers{
		run: "once-" + strings.ToLower(rand.Text()), password: rand.Text(),
		kinds: kinds, address: map[server.Kind]string{},
	}
	if err := c.up(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *containers) up(ctx context.Context) error {
	args := []string{"up", "--detach", "--wait"}
	for _, k := range c.kinds {
		args = append(args, string(k))
	}
	if _, err := c.compose(ctx, args...); err != nil {
		return err
	}
	for _, k := range c.kinds {
		port := "5432"
		switch k {
		case server.MariaDB:
			port = "3306"
		case server.RabbitMQ:
			port = "5672"
		case server.Redis:
			port = "6379"
		}
		address, err := c.compose(ctx, "port", string(k), port)
		if err != nil {
			return err
		}
		c.address[k] = strings.TrimSpace(address)
	}
	return nil
}

func (c *containers) compose(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"compose", "--project-name", c.run, "--file", "-"}, args...)...)
	cmd.Env = append(os.Environ(), "ONCE_RUN="+c.run, "ONCE_PASSWORD="+c.password)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(composeFile), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("docker compose %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

func (c *containers) Env() []string {
	data := "/tmp/" + c.run + "/data"
	var env []string
	if slices.Contains(c.kinds, server.Postgres) {
		env = append(env, testenv.PostgresVar+"="+c.postgresURL(server.Postgres), testenv.PostgresDataVar+"="+data)
	}
	if slices.Contains(c.kinds, server.PgBouncer) {
		env = append(env, testenv.PgBouncerVar+"="+c.postgresURL(server.PgBouncer))
	}
	if slices.Contains(c.kinds, server.MariaDB) {
		dsn := fmt.Sprintf("root:%s@tcp(%s)/once", c.password, c.address[server.MariaDB])
		env = append(env, testenv.MariaDBVar+"="+dsn, testenv.MariaDBDataVar+"="+data)
	}
	if slices.Contains(c.kinds, server.RabbitMQ) {
		url := fmt.Sprintf("amqp://once:%s@%s/", c.password, c.address[server.RabbitMQ])
		env = append(env, testenv.RabbitMQVar+"="+url, testenv.RabbitMQClusterVar+"="+c.run)
	}
	if slices.Contains(c.kinds, server.Redis) {
		url := fmt.Sprintf("redis://:%s@%s/0", c.password, c.address[server.Redis])
		env = append(env, testenv.RedisVar+"="+url, testenv.RedisDataVar+"="+data)
	}
	return env
}

func (c *containers) postgresURL(k server.Kind) string {
	return fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=disable", c.password, c.address[k])
}

// Stop removes the containers and their data.
func (c *containers) Stop() error {
	_, err := c.compose(context.Background(), "down", "--volumes", "--timeout", "10")
	return err
}
