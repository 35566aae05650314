//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	keeperVerb = "keep-test-program" // the argument of "go test -exec"
	roomVar    = "ONCE_SUITE_ROOM"
	roomPrefix = "once-suite-"
	usageDir   = "usage"
	lockName   = "lock"
)

// room is the temporary directory of a run. A running suite holds its lock. The
// next run removes rooms without a holder.
type room struct {
	dir  string
	lock *os.File
}

func newRoom(parent string) (*room, error) {
	if err := sweepRooms(parent); err != nil {
		return nil, err
	}
	// Names are short, because the path of a socket is limited to 107 bytes.
	r := &room{dir: filepath.Join(parent, roomPrefix+strconv.Itoa(os.Getpid()))}
	err := os.Mkdir(r.dir, 0o711)
	if err != nil {
		return nil, err
	}
	if r.lock, err = os.OpenFile(filepath.Join(r.dir, lockName), os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		err = syscall.Flock(int(r.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	// The accounts of servers need access.
	err = errors.Join(err, os.Chmod(r.dir, 0o711), os.Mkdir(filepath.Join(r.dir, usageDir), 0o700))
	if err != nil {
		return nil, errors.Join(err, r.remove())
	}
	return r, nil
}

// sweepRooms removes the rooms of killed runs.
func sweepRooms(parent string) error {
	dirs, err := filepath.Glob(filepath.Join(parent, roomPrefix+"*"))
	for _, dir := range dirs {
		lock, opened := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if opened != nil {
			continue // new, or not ours
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			err = errors.Join(err, removeTree(dir))
		}
		_ = lock.Close()
	}
	return err
}

func (r *room) remove() error {
	err := removeTree(r.dir)
	if r.lock != nil {
		err = errors.Join(err, r.lock.Close())
	}
	return err
}

// removeTree is os.RemoveAll for a directory into which an ending process may
// still write.
func removeTree(dir string) (err error) {
	poll(patience, func() bool {
		err = os.RemoveAll(dir)
		return !errors.Is(err, syscall.ENOTEMPTY)
	})
	return err
}

// usage is the cost of the test program of a package.
type usage struct {
	Dir    string // of the package
	Wall   time.Duration
	User   time.Duration
	System time.Duration
}

func (r *room) usage() (all []usage, err error) {
	files, err := filepath.Glob(filepath.Join(r.dir, usageDir, "*"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var u usage
		if err := json.Unmarshal(text, &u); err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, err
}

// keep runs a test program and returns its exit code, or 1 if it passed but
// left files or processes.
func keep(command []string) int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	endWithParent(syscall.SIGTERM)
	adoptOrphans()
	temp := filepath.Join(os.Getenv(roomVar), strconv.Itoa(os.Getpid()))
	// The accounts of servers need access, whatever the umask.
	if err := errors.Join(os.Mkdir(temp, 0o711), os.Chmod(temp, 0o711)); err != nil {
		return complain(err)
	}
	k := &keeper{temp: temp, begun: time.Now()}
	code := k.run(command, signals)
	if err := errors.Join(k.clear(), k.account()); err != nil {
		return complain(err)
	}
	return code
}

func complain(err error) int {
	fmt.Printf("suite: %v\n", err)
	return exitFailed
}

type keeper struct {
	temp  string
	begun time.Time
}

func (k *keeper) run(command []string, signals <-chan os.Signal) int {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+k.temp, "GOTMPDIR=")
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, roomVar+"=") })
	// The kernel sends the signal when the thread that forked ends, so that
	// thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return complain(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGQUIT { // from the go command: print the stacks and exit
				_ = cmd.Process.Signal(s)
				continue
			}
			_ = cmd.Process.Kill()
			<-ended
			return exitInterrupted
		case err := <-ended:
			if code := cmd.ProcessState.ExitCode(); err != nil && code > 0 {
				return code
			} else if err != nil {
				fmt.Printf("suite: the test program ended with %v\n", err)
				return exitFailed
			}
			return k.inspect()
		}
	}
}

// inspect fails a package that left something. Signalled processes may need a
// moment.
func (k *keeper) inspect() (code int) {
	var left []string
	poll(patience, func() bool {
		reap()
		left = k.left()
		return len(left) == 0
	})
	if len(left) == 0 {
		return 0
	}
	fmt.Printf("FAIL: the tests have left behind: %s\n", strings.Join(left, ", "))
	return exitFailed
}

// left names the remaining files and processes.
func (k *keeper) left() []string {
	var left []string
	for _, pid := range descendants(os.Getpid()) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))))
	}
	_ = filepath.WalkDir(k.temp, func(path string, _ os.DirEntry, err error) error {
		if name, _ := filepath.Rel(k.temp, path); err == nil && name != "." && len(left) < 10 {
			left = append(left, "$TMPDIR/"+name)
		}
		return nil
	})
	return left
}

// clear ends the remaining processes and removes the temporary directory.
func (k *keeper) clear() error {
	poll(patience, func() bool {
		all := descendants(os.Getpid())
		for _, pid := range all {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		reap()
		return len(all) == 0
	})
	return removeTree(k.temp)
}

// account writes the cost of the tests, including all ended descendants.
func (k *keeper) account() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &r); err != nil {
		return err
	}
	text, err := json.Marshal(usage{dir, time.Since(k.begun), time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(os.Getenv(roomVar), usageDir, strconv.Itoa(os.Getpid())), text, 0o600)
}

// poll waits until a condition holds, with a time limit.
func poll(limit time.Duration, holds func() bool) {
	end := time.Now().Add(limit)
	for !holds() && time.Now().Before(end) {
		<-time.After(20 * time.Millisecond)
	}
}

// reap waits for adopted processes that have ended.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// descendants returns the processes below one, including zombies.
func descendants(of int) (all []int) {
	children := map[int][]int{}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			parent := parentOf(pid)
			children[parent] = append(children[parent], pid)
		}
	}
	for next := children[of]; len(next) > 0; {
		pid := next[0]
		all = append(all, pid)
		next = append(next[1:], children[pid]...)
	}
	return all
}

// parentOf returns 0 for a process that has just ended.
func parentOf(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// After the name in parentheses: state, parent.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

const (
	prSetPdeathsig      = 1
	prSetChildSubreaper = 36
)

// endWithParent makes the kernel send us a signal when our parent ends.
func endWithParent(s syscall.Signal) { prctl(prSetPdeathsig, uintptr(s)) }

// adoptOrphans makes us the parent of descendants whose own parent ends.
func adoptOrphans() { prctl(prSetChildSubreaper, 1) }

func prctl(option int, value uintptr) {
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, uintptr(option), value, 0)
}
