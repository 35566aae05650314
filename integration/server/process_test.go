//go:build linux

package server

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/effectively-once/once/internal/testenv"
)

// A shell that starts a program waits in the kernel until that has begun. If
// the new process is stopped before, the shell does not stop.
func TestAShellThatStartsAProgramIsKilledWithIt(t *testing.T) {
	for range 100 {
		cmd := exec.Command("sh", "-c", "while :; do env true; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		p, err := launch(cmd)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Await(t, "it has started a program", func() bool {
			all, err := family(cmd.Process.Pid)
			return err == nil && len(all) > 1
		})
		if err := p.kill(); err != nil {
			t.Fatal(err)
		}
	}
}
