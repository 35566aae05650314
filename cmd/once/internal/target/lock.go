package target

import (
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// Update changes the File, one process after the other: none overwrites what another has written meanwhile. An error of
// change leaves it as it is.
func Update(change func(*File) error) (*File, error) {
	path, err := filePath()
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(dir, "targets.lock")).Lock() // another file than the one that is replaced
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
