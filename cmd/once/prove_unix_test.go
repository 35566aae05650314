//go:build unix

package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Whatever ends the proof ends the copies, and what they have started.
func TestAProofEndsItsProcesses(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			from, started := markedFile(t), filepath.Join(t.TempDir(), "started")
			cmd, temp := command(t, "once", "prove", "--url", from, "--for", "1h", "--kills", "0", "--request", "POST /orders", "--body", `{"item":"{{id}}"}`, "--",
				"sh", "-c", "echo $$ {{listen}} >> "+started+"; proved-shop --db {{store}} --listen {{listen}} & wait")
			var said strings.Builder
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			db := open(t, from).Tables.DB
			eventually(t, "orders are placed by two copies", func() bool {
				// Before its first start there is no table, and the shop may lock readers out.
				orders := 0
				_ = db.QueryRow("SELECT count(*) FROM orders").Scan(&orders)
				return orders > 0 && len(lines(started)) == 2
			})
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			wantExit(t, cmd.Wait(), exitFailed)
			if said.String() != "once: interrupted\n" {
				t.Errorf("it says %s", said.String())
			}
			for _, line := range lines(started) {
				pid, at, _ := strings.Cut(line, " ")
				if n, err := strconv.Atoi(pid); err != nil || syscall.Kill(n, 0) != syscall.ESRCH {
					t.Errorf("the process %s lives: %v", pid, err)
				}
				eventually(t, "nothing listens at "+at, func() bool { // whoever is killed closes its port a moment later
					conn, err := net.Dial("tcp", at)
					if err == nil {
						conn.Close()
					}
					return err != nil
				})
			}
			wantEmpty(t, temp)
		})
	}
}

// lines are those of a file that are complete.
func lines(file string) []string {
	text, _ := os.ReadFile(file)
	all := strings.Split(string(text), "\n")
	return all[:len(all)-1]
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for begun := time.Now(); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > testTime {
			t.Fatalf("not so: %s", what)
		}
	}
}
