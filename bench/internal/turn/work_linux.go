package turn

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/effectively-once/once/internal/testenv"
)

// Work returns the processor time that this process and the private PostgreSQL
// have used.
func Work() (time.Duration, error) {
	own, err := OwnWork()
	if err != nil {
		return 0, err
	}
	server, err := serverWork()
	return own + server, err
}

// OwnWork returns the processor time that this process has used.
func OwnWork() (time.Duration, error) {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return 0, os.NewSyscallError("getrusage", err)
	}
	return time.Duration(own.Utime.Nano() + own.Stime.Nano()), nil
}

// serverWork returns the time of the server's first process, of its children,
// and of ended children.
func serverWork() (sum time.Duration, err error) {
	text, err := os.ReadFile(filepath.Join(os.Getenv(testenv.PostgresDataVar), "postmaster.pid"))
	if err != nil {
		return 0, fmt.Errorf("the private PostgreSQL tells no process: %w", err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	postmaster := filepath.Join("/proc", strings.TrimSpace(first))
	if sum, err = readEnded(filepath.Join(postmaster, "stat")); err != nil {
		return 0, err
	}
	children, err := os.ReadFile(filepath.Join(postmaster, "task", filepath.Base(postmaster), "children"))
	if err != nil {
		return 0, err
	}
	for _, pid := range append(strings.Fields(string(children)), filepath.Base(postmaster)) {
		ran, err := readRun(filepath.Join("/proc", pid, "schedstat"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
			return 0, err
		}
		sum += ran
	}
	return sum, nil
}

// tick is the unit of times in a stat file on all platforms of Go.
const tick = time.Second / 100

// readEnded reads the time of the ended children of a process.
func readEnded(file string) (sum time.Duration, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // after its name, which may contain spaces
	if len(fields) < 15 {
		return 0, fmt.Errorf("%s has %d fields", file, len(fields))
	}
	for _, field := range fields[13:15] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// readRun reads the time of a process, more precisely than its stat file.
func readRun(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err
}
