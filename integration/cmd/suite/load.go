//go:build linux

package main

import (
	"crypto/sha256"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
)

const burnerVerb = "burn-processors"

// startLoad starts a process that keeps n threads busy at normal priority, and
// returns a function that stops it.
func startLoad(n int) (stop func(), err error) {
	if n == 0 {
		return func() {}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// A separate process, so that the load is on the machine and not on our own
	// scheduler.
	cmd := exec.Command(self, burnerVerb, strconv.Itoa(n))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}

// burn never returns. It ends with its parent process.
func burn(args []string) {
	endWithParent(syscall.SIGKILL)
	n, err := strconv.Atoi(args[0])
	if err != nil {
		os.Exit(exitUsage)
	}
	runtime.GOMAXPROCS(n + 1)
	for range n {
		go func() {
			for sum := [sha256.Size]byte{}; ; sum = sha256.Sum256(sum[:]) {
			}
		}()
	}
	select {}
}
