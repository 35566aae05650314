//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/effectively-once/once/internal/backoff"
)

const (
	homePrefix = "once-server-"
	newPrefix  = "once-new-" // not locked yet, so sweep must not find it
	lockName   = "once.lock"
)

// home is the directory of an instance. The process that started the instance
// holds its lock. A home without a holder was left by a killed process.
type home struct {
	dir  string
	lock *os.File            // nil: removed
	as   *syscall.Credential // nil: as ourselves
	env  []string            // of the server, with what every server gets
}

// newHome removes abandoned homes and creates one for the account, or for
// ourselves if we are not root.
func newHome(k Kind, account string) (*home, error) {
	as, err := credential(account)
	if err != nil {
		return nil, err
	}
	// Servers print the resolved path, which is compared.
	parent, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return nil, err
	}
	if err := sweep(parent); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, newPrefix)
	if err != nil {
		return nil, err
	}
	h := &home{dir: dir, as: as}
	if err := h.furnish(filepath.Join(parent, homePrefix+string(k)+strings.TrimPrefix(filepath.Base(dir), newPrefix))); err != nil {
		return nil, errors.Join(err, h.remove())
	}
	return h, nil
}

// furnish locks the home before it gives it its final name, so that sweep
// cannot mistake it for abandoned.
func (h *home) furnish(final string) error {
	lock, err := os.OpenFile(filepath.Join(h.dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	h.lock = lock
	if _, err := tryLock(lock); err != nil { // nobody else knows the file
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if err := os.Rename(h.dir, final); err != nil {
		return err
	}
	h.dir = final
	if err := h.own(h.dir); err != nil {
		return err
	}
	return h.mkdir("tmp")
}

// credential returns the account that root switches to, or nil for other users.
func credential(account string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(account)
	if err != nil {
		return nil, fmt.Errorf("root does not run servers, and the account that its Debian package creates is missing: %w; install the package, or run this as another user", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (h *home) path(name string) string { return filepath.Join(h.dir, name) }

func (h *home) own(path string) error {
	if h.as == nil {
		return nil
	}
	return os.Chown(path, int(h.as.Uid), int(h.as.Gid))
}

func (h *home) mkdir(name string) error {
	if err := os.Mkdir(h.path(name), 0o700); err != nil {
		return err
	}
	return h.own(h.path(name))
}

// write writes a file that only the server can read.
func (h *home) write(name, text string) error {
	if err := os.WriteFile(h.path(name), []byte(text), 0o600); err != nil {
		return err
	}
	return h.own(h.path(name))
}

// launch starts a program as the server's account, with its output in the log
// and without our environment, because variables such as PGPORT would change
// what it does. It receives the signal when we end.
func (h *home) launch(lifeline syscall.Signal, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(h.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = h.dir
	cmd.Env = []string{"HOME=" + h.dir, "TMPDIR=" + h.path("tmp"), "LC_ALL=C.UTF-8", "PATH=" + os.Getenv("PATH") + systemPath}
	cmd.Env = append(cmd.Env, h.env...)
	cmd.Stdout, cmd.Stderr = log, log
	// Its own session, so that Ctrl-C in a terminal reaches only us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.as, Setsid: true, Pdeathsig: lifeline}
	return launch(cmd)
}

// run runs a program to its end, like launch.
func (h *home) run(ctx context.Context, program string, args ...string) error {
	p, err := h.launch(syscall.SIGKILL, program, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s: %w", program, ctx.Err()), p.kill())
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %v; the end of its output:\n%s", program, p, h.logTail())
	}
	return nil
}

// logTail returns the end of the log.
func (h *home) logTail() string {
	text, err := os.ReadFile(h.path("log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// remove removes the directory. It may be called again.
func (h *home) remove() error {
	err := removeAll(h.dir)
	if h.lock != nil {
		err = errors.Join(err, h.lock.Close())
		h.lock = nil
	}
	return err
}

// sweep removes the homes in the directory that no process holds.
func sweep(parent string) error {
	dirs, err := filepath.Glob(filepath.Join(parent, homePrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := removeAbandoned(dir); err != nil {
			return fmt.Errorf("remove what a killed run left behind: %w; remove %s by hand", err, dir)
		}
	}
	return nil
}

func removeAbandoned(dir string) error {
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // not a home, being removed, or not ours
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if free, err := tryLock(lock); err != nil || !free {
		return err
	}
	return removeAll(dir)
}

// removeAll is os.RemoveAll for a home. Its server may write until it notices
// its parent's death. The lock file goes last, because without it the rest
// would not be recognised as a home.
func removeAll(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pause := backoff.Backoff{First: 20 * time.Millisecond, Limit: 200 * time.Millisecond}
	for {
		err := removeContents(dir)
		if err == nil {
			err = os.RemoveAll(dir)
		}
		if !errors.Is(err, syscall.ENOTEMPTY) || backoff.Sleep(ctx, pause.Next()) != nil {
			return err
		}
	}
}

func removeContents(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if entry.Name() != lockName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}

// tryLock reports whether it acquired the file's lock. The end of the process
// releases it.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
