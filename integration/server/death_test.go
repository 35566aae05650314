//go:build linux

package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/redis/go-redis/v9/logging"

	"github.com/effectively-once/once/internal/testenv"
)

// childVar turns this test binary into a process that starts servers and waits
// to be killed.
const childVar = "ONCE_SERVER_TEST_CHILD"

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // connections are lost on purpose
	logging.Disable()                       // by Redis' clients too
	if how := os.Getenv(childVar); how != "" {
		if err := child(how); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// child starts servers, prints their process IDs, and blocks.
func child(how string) error {
	s, err := Start(context.Background(), everyKind...)
	if err != nil {
		return err
	}
	if how == "busy" {
		if err := keepBusy(s.Postgres.DSN()); err != nil {
			return err
		}
	}
	if how == "paused" {
		for _, i := range s.byDefault() {
			if err := i.Pause(); err != nil {
				return err
			}
		}
	}
	for _, i := range s.byDefault() {
		fmt.Print(i.process.cmd.Process.Pid, " ")
	}
	fmt.Println()
	_, err = os.Stdin.Read(make([]byte, 1))
	return fmt.Errorf("the input has ended: %v", err)
}

// keepBusy occupies a backend with work that does not notice a lost client.
func keepBusy(dsn string) error {
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		return err
	}
	frontend := conn.PgConn().Frontend()
	frontend.SendQuery(&pgproto3.Query{String: "SELECT sum(n) FROM generate_series(1, 10000000000) n"})
	return frontend.Flush()
}

// The parent-death signal comes when the thread that forked ends, and Go ends
// threads occasionally.
func TestServerOutlivesTheThreadThatAskedForIt(t *testing.T) {
	need(t, Postgres)
	var i *Instance
	var err error
	thread := onThreadThatEnds(func() { i, err = StartPostgres(t.Context()) })
	started(t)(i, err)
	testenv.Await(t, "the thread has ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread))
		return errors.Is(err, os.ErrNotExist)
	})
	if i.process.endsWithin(200 * time.Millisecond) {
		t.Errorf("the server has ended with it: %v", i.process)
	}
}

func onThreadThatEnds(do func()) (thread int) {
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if syscall.Gettid() != os.Getpid() {
			do()
			done <- syscall.Gettid()
			return
		}
		// The main thread never ends. While it is held here, it is not picked
		// again.
		defer runtime.UnlockOSThread()
		done <- onThreadThatEnds(do)
	}()
	return <-done
}

func TestServersDieWithTheProcessThatStartedThem(t *testing.T) {
	for _, how := range []string{"idle", "busy", "paused"} {
		t.Run(how, func(t *testing.T) {
			dir := need(t, everyKind...)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childVar+"="+how)
			cmd.Stderr = os.Stderr
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var all []status
			for field := range strings.FieldsSeq(line) {
				pid, err := strconv.Atoi(field)
				if err != nil {
					t.Fatalf("the child says %q", line)
				}
				all = append(all, members(t, pid)...)
			}

			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // killed
			testenv.Await(t, fmt.Sprintf("all of %v are gone", all), func() bool { return !anyLives(all) })
			if left, err := os.ReadDir(dir); err != nil || len(left) != len(everyKind) {
				t.Fatalf("the killed process has left %v, %v: want a home of each to sweep", left, err)
			}
			if err := sweep(dir); err != nil { // privateTemp checks whether it left something
				t.Fatal(err)
			}
		})
	}
}
