//go:build linux

package server

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// status is a process as /proc/PID/stat shows it. In most containers, root
// cannot read more about processes of other accounts.
type status struct {
	pid, parent int
	state       string
	born        string // in clock ticks since boot: tells apart two processes with the same PID
}

func readStatus(pid int) (status, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return status{}, err
	}
	// The name in parentheses may contain anything. The fields after it contain
	// no blanks.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return status{}, fmt.Errorf("/proc/%d/stat is unlike what proc(5) says: %q", pid, text)
	}
	parent, err := strconv.Atoi(fields[1])
	return status{pid: pid, state: fields[0], parent: parent, born: fields[19]}, err
}

// dead also returns true for a zombie, because its parent may never wait for
// it.
func (s status) dead() bool { return s.state == "Z" || s.state == "X" }

func (s status) stopped() bool { return s.state == "T" || s.state == "t" }

// waits reports whether it waits in the kernel, where only SIGKILL reaches it.
func (s status) waits() bool { return s.state == "D" }

// lives reports whether this very process still runs or is stopped.
func (s status) lives() bool {
	now, err := readStatus(s.pid)
	return err == nil && now.born == s.born && !now.dead()
}

// signal sends a signal, unless the process has ended.
func (s status) signal(sig syscall.Signal) error {
	if !s.lives() {
		return nil
	}
	if err := syscall.Kill(s.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, s.pid, err)
	}
	return nil
}

// family returns the process, if it lives, and all of its living descendants,
// parents first.
func family(pid int) ([]status, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]status{}
	var all []status
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		s, err := readStatus(id)
		switch {
		case err != nil || s.dead(): // it has ended since
		case id == pid:
			all = append(all, s)
		default:
			children[s.parent] = append(children[s.parent], s)
		}
	}
	for next := 0; next < len(all); next++ {
		all = append(all, children[all[next].pid]...)
	}
	return all, nil
}
