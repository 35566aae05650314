//go:build linux

package main

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// runCommand runs the command and returns its exit code.
func runCommand(command, env []string, signals <-chan os.Signal) int {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	// The kernel kills the command when the thread that forked it ends, so that
	// thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		say("%v", err)
		return exitNotFound
	}
	ended := make(chan struct{})
	defer close(ended)
	go forward(signals, cmd.Process, ended)
	return exitCode(cmd.Wait())
}

// forward forwards signals until the command has ended. The command already
// receives signals from its terminal, and many programs treat a second one as a
// request to exit at once.
func forward(signals <-chan os.Signal, to *os.Process, ended <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			if typed := s == syscall.SIGINT || s == syscall.SIGQUIT; !typed || !inForeground() {
				_ = to.Signal(s) // fails if the command has just ended
			}
		case <-ended:
			return
		}
	}
}

// inForeground reports whether the terminal sends its signals to our process
// group.
func inForeground() bool {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return false
	}
	// After the name in parentheses: state, parent, group, session, terminal,
	// foreground group.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return len(fields) > 5 && fields[5] == strconv.Itoa(syscall.Getpgrp())
}
