package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/effectively-once/once/internal/presence"
	"github.com/effectively-once/once/store"
)

// Locks of open files, which package syscall does not name. Those of processes
// would end when any copy of the file is closed, and are not seen by the process
// that has them.
const (
	getFileLock = 36 // F_OFD_GETLK
	setFileLock = 37 // F_OFD_SETLK
)

const bootFile = "/proc/sys/kernel/random/boot_id"

// fileLock is the presence of a relay that has locked a byte of a file. The lock
// ends with the process.
type fileLock struct {
	path  string
	file  *os.File
	place presence.Place
	id    [16]byte
}

// lockFile locks a byte of a file for a new relay. It returns nil if the file
// system, or the machine, does not let others see that.
func lockFile(path string) (store.Present, error) {
	boot, err := os.ReadFile(bootFile)
	if err != nil || len(strings.TrimSpace(string(boot))) == 0 {
		return nil, nil // it might be mistaken for another machine that has the same files
	}
	f := &fileLock{path: path}
	if f.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666); err != nil {
		return nil, err
	}
	info, err := f.file.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	at := info.Sys().(*syscall.Stat_t)
	f.place = presence.PlaceOf("file", string(boot), fmt.Sprint(at.Dev), fmt.Sprint(at.Ino))
	f.id = f.place.NewID()
	lock := byteOf(f.id)
	err = syscall.FcntlFlock(f.file.Fd(), setFileLock, &lock)
	if err == nil && f.isSeen() {
		return f, nil
	}
	f.Close()
	if err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOLCK) {
		return nil, err
	}
	return nil, nil
}

// byteOf returns a lock of the byte of a relay. It may be after the end of the file,
// which is empty.
func byteOf(id [16]byte) syscall.Flock_t {
	return syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: presence.Number(id) & (1<<62 - 1), Len: 1}
}

// isSeen reports whether another who opens the file sees the lock.
func (f *fileLock) isSeen() bool {
	other, err := os.Open(f.path)
	if err != nil {
		return false
	}
	defer other.Close()
	free, err := isFree(other, f.id)
	return err == nil && !free
}

func isFree(file *os.File, id [16]byte) (bool, error) {
	lock := byteOf(id)
	err := syscall.FcntlFlock(file.Fd(), getFileLock, &lock)
	return lock.Type == syscall.F_UNLCK, err
}

func (f *fileLock) ID() [16]byte { return f.id }

// Look checks that the locked file is still the one that others open.
func (f *fileLock) Look(ctx context.Context, others [][16]byte) (missing [][16]byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	mine, err := f.file.Stat()
	if err != nil {
		return nil, err
	}
	found, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	if !os.SameFile(mine, found) {
		return nil, fmt.Errorf("once: %s, which relays lock, was replaced", f.path)
	}
	for _, id := range others {
		if !f.place.Has(id) || id == f.id { // whose own lock is no obstacle to it
			continue
		}
		free, err := isFree(f.file, id)
		if err != nil {
			return nil, err
		}
		if free {
			missing = append(missing, id)
		}
	}
	return missing, nil
}

func (f *fileLock) Close() { _ = f.file.Close() }
