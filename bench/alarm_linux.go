package main

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a timer for less than a millisecond. Timers of the Go runtime are
// not precise enough, because an idle process sleeps for whole milliseconds.
// This kernel timer becomes readable when it is due, which wakes the runtime's
// poller at once.
type alarm struct {
	fd   int
	file *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &alarm{fd: fd, file: os.NewFile(uintptr(fd), "timer")}, nil
}

func (a *alarm) wait(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(a.fd, 0, &spec, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	var expirations [8]byte
	_, err := a.file.Read(expirations[:])
	return err
}

func (a *alarm) close() { _ = a.file.Close() }
