package target

import (
	"context"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// Update changes the File under a lock, so that concurrent processes do not
// overwrite each other's changes. If change fails, the File stays as it is. The
// holder of the lock may be suspended, so the wait ends with ctx.
func Update(ctx context.Context, change func(*File) error) (*File, error) {
	path, err := filePath()
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, filepath.Join(dir, "targets.lock")) // not the file that is replaced
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := Load()
	if err != nil {
		return nil, err
	}
	if err := change(f); err != nil {
		return nil, err
	}
	return f, f.save()
}

// lock waits for the lock until ctx ends. A lock acquired later is released.
func lock(ctx context.Context, path string) (func(), error) {
	type held struct {
		unlock func()
		err    error
	}
	got := make(chan held, 1)
	go func() {
		f, err := lockedfile.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			got <- held{err: err}
			return
		}
		got <- held{unlock: func() { _ = f.Close() }}
	}()
	select {
	case h := <-got:
		return h.unlock, h.err
	case <-ctx.Done():
		go func() {
			if h := <-got; h.err == nil {
				h.unlock()
			}
		}()
		return nil, ctx.Err()
	}
}
