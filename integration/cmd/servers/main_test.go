//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/testenv"
)

// toolVar turns this test binary into the tool.
const toolVar = "ONCE_SERVERS_TEST_TOOL"

func TestMain(m *testing.M) {
	if os.Getenv(toolVar) != "" {
		_ = os.Unsetenv(toolVar)
		main()
	}
	os.Exit(m.Run())
}

// tool returns the tool as a user runs it, with temporary files in a directory
// that must be empty in the end.
func tool(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.MkdirTemp("", "once-test-")
	if err == nil {
		err = os.Chmod(dir, 0o711) // the accounts of the servers need access
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("something was left behind: %v", err)
			_ = os.RemoveAll(dir)
		}
	})
	cmd := exec.Command(os.Args[0], args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), toolVar+"=1", "TMPDIR="+dir)
	for _, name := range testenv.Variables() {
		cmd.Env = append(cmd.Env, name+"=") // the tests may run under the tool themselves
	}
	return cmd
}

func TestCommandGetsTheEnvironmentAndGivesItsExitCode(t *testing.T) {
	server.Need(t, server.Postgres, server.PgBouncer, server.RabbitMQ, server.Redis)
	cmd := tool(t, "-only", "pgbouncer,rabbitmq,redis", "--", "sh", "-c", `env; echo to stderr >&2; cat; exit 7`)
	cmd.Stdin = strings.NewReader("from stdin\n")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("%v, want exit code 7\n%s", err, &stderr)
	}
	lines := strings.Split(stdout.String(), "\n")
	for _, name := range []string{testenv.PostgresVar, testenv.PgBouncerVar, testenv.PostgresDataVar,
		testenv.RabbitMQVar, testenv.RabbitMQClusterVar, testenv.RedisVar, testenv.RedisDataVar} {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, name+"=") && line != name+"=" }) {
			t.Errorf("%s is not in the environment", name)
		}
	}
	for _, name := range []string{testenv.MariaDBVar, testenv.RequireVar} {
		if !slices.Contains(lines, name+"=") {
			t.Errorf("%s is set, although not everything runs", name)
		}
	}
	if !slices.Contains(lines, "from stdin") || !strings.Contains(stderr.String(), "to stderr\n") {
		t.Errorf("the command's streams are not the tool's:\n%s\n%s", &stdout, &stderr)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	server.Need(t, server.Postgres)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		script := `trap 'echo got it; exit 5' TERM INT; echo ready; while read -r line; do :; done`
		cmd := tool(t, "-only", "postgres", "sh", "-c", script)
		// Not in the foreground of a terminal, which would send the signal to
		// the command as well.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		input, out := start(t, cmd)
		defer input.Close()
		expectLine(t, out, "ready")
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		expectLine(t, out, "got it")
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
			t.Errorf("%v: %v, want the command's exit code 5", sig, err)
		}
	}
}

func TestCommandAndServersDieWithTheTool(t *testing.T) {
	server.Need(t, server.Postgres)
	cmd := tool(t, "-only", "postgres", "sh", "-c", `echo "$ONCE_TEST_POSTGRES"; read -r line`)
	input, out := start(t, cmd)
	defer input.Close()
	address := addressIn(t, readLine(t, out))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The command holds the other end of the pipe until it dies.
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	_ = cmd.Wait() // killed
	mustGo(t, address)

	sweeper := exec.Command(os.Args[0], "-only", "postgres", "true")
	sweeper.Env = cmd.Env
	if out, err := sweeper.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestWithoutACommandServersStayUntilASignal(t *testing.T) {
	server.Need(t, server.Postgres)
	cmd := tool(t, "-only", "postgres")
	_, out := start(t, cmd)
	exports := readLine(t, out) + readLine(t, out)
	address := addressIn(t, exports)
	if !regexp.MustCompile(`(?m)^export ONCE_TEST_POSTGRES='postgres://[^']+'\nexport ONCE_TEST_POSTGRES_DATA='/[^']+'\n$`).MatchString(exports) {
		t.Errorf("not for a shell: %q", exports)
	}
	if conn, err := net.Dial("tcp", address); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	mustGo(t, address)
}

func TestExitCodesOfTheToolItself(t *testing.T) {
	server.Need(t, server.Postgres)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-h"}, 0, "usage: servers"},
		{[]string{"-only", "oracle"}, exitUsage, `no such server: "oracle"`},
		{[]string{"-nonsense"}, exitUsage, "usage: servers"},
		{[]string{"-install", "true"}, exitUsage, "-install runs no command"},
		{[]string{"-only", "postgres", "-install"}, 0, "nothing is missing"},
		{[]string{"-only", "postgres", "--", "/does/not/exist"}, exitNotFound, "/does/not/exist"},
		{[]string{"-only", "postgres", "--", "sh", "-c", "kill -9 $$"}, exitSignalPlus + 9, "ready"},
	} {
		cmd := tool(t, c.args...)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("%q: exit code %d (%v), want %d and %q:\n%s", c.args, code, err, c.code, c.says, out)
		}
	}
}

func TestSignalDuringTheStartEndsIt(t *testing.T) {
	server.Need(t, server.Postgres)
	cmd := tool(t, "-only", "postgres", "true")
	start(t, cmd)
	testenv.Await(t, "a server is being started", func() bool {
		homes, _ := filepath.Glob(filepath.Join(cmd.Dir, "once-server-*", "data"))
		return len(homes) > 0
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("%v, want exit code %d", err, exitFailed)
	}
}

// start starts the tool and returns its streams.
func start(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, *bufio.Reader) {
	t.Helper()
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	// A pipe that is never closed fails the test instead of blocking it.
	if err := out.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // unless it has ended
	return input, bufio.NewReader(out)
}

func readLine(t *testing.T, out *bufio.Reader) string {
	t.Helper()
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	return line
}

func expectLine(t *testing.T, out *bufio.Reader, want string) {
	t.Helper()
	if line := readLine(t, out); line != want+"\n" {
		t.Fatalf("%q, want %q", line, want)
	}
}

func addressIn(t *testing.T, text string) string {
	t.Helper()
	address := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).FindString(text)
	if address == "" {
		t.Fatalf("no address in %q", text)
	}
	return address
}

// mustGo waits until nothing listens at an address.
func mustGo(t *testing.T, address string) {
	t.Helper()
	testenv.Await(t, "nobody listens on "+address, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}
