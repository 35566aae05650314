//go:build unix && go1.25

package lease_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/lease"
)

// stalled makes this test run as the process that is stopped.
const stalled = "ONCE_TEST_STALLED_HOLDER"

const stalledLease = 3 * time.Second

// holdOverPipes holds a lease whose extensions wait for a byte of the standard input.
func holdOverPipes() {
	ended := make(chan string, 1)
	begun, calls := time.Now(), 0
	lease.Keep(context.Background(), new(lease.Queue), holder{
		extend: func(context.Context) (bool, error) {
			if calls++; calls == 2 {
				ended <- "works on"
				select {}
			}
			fmt.Println("extends")
			_, err := os.Stdin.Read(make([]byte, 1))
			return false, err
		},
		lost: func(err error) error { ended <- "gives up: " + err.Error(); return err },
	}, stalledLease, begun)
	fmt.Println(<-ended)
}

// A process was stopped while it extended its lease, and hears only after its end
// that it was extended. In a store that compares no times when it writes, the
// request may have arrived just now, when somebody had found the lease over.
func TestALeaseThatEndedBeforeItsExtensionWasConfirmedIsLost(t *testing.T) {
	if os.Getenv(stalled) != "" {
		holdOverPipes()
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), stalled+"=1")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if lines.Scan(); lines.Text() != "extends" {
		t.Fatalf("the holder says %q", lines.Text())
	}
	over := time.Now().Add(stalledLease * 2 / 3) // a third has passed
	signal(t, child, syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(child.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("it was not stopped: %v, %v", status, err)
	}
	if _, err := io.WriteString(in, "."); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(over)) // a lease is real time
	signal(t, child, syscall.SIGCONT)
	if lines.Scan(); !strings.HasPrefix(lines.Text(), "gives up") {
		t.Errorf("%v after its lease has ended, the holder %s", time.Since(over), lines.Text())
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

func signal(t *testing.T, child *exec.Cmd, s syscall.Signal) {
	t.Helper()
	if err := child.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
