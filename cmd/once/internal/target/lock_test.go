package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// Many who set a target at once lose none. The lock is one of the operating system, which tells opened files apart, so
// goroutines stand for processes here.
func TestNoTargetIsLost(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	const many = 50
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			if _, err := Update(t.Context(), func(f *File) error {
				f.Targets[fmt.Sprint("t", i)] = Named{URL: "sqlite:/shop.db"}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f, err := Load()
	if err != nil || len(f.Targets) != many {
		t.Errorf("%d of %d targets are there, %v", len(f.Targets), many, err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(f.Path()), "targets-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	info, err := os.Stat(filepath.Dir(f.Path()))
	if err != nil || info.Mode().Perm()&0o077 != 0 && os.Getenv("OS") != "Windows_NT" {
		t.Errorf("others can read the directory: %v %v", info.Mode(), err)
	}
}

// Who waits for another process can be interrupted.
func TestTheWaitForTheLockEnds(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("HOME", dir)
	path, err := filePath()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(filepath.Dir(path), "targets.lock")).Lock()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Update(ctx, func(*File) error { return errors.New("it has the lock, too") }); !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	unlock()
	if _, err := Update(t.Context(), func(f *File) error { f.Current = "here"; return nil }); err != nil { // it was given back
		t.Error(err)
	}
}
