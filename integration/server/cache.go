//go:build linux

package server

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// cacheDir is the parent of caches of programs. Root's own is not readable by the
// accounts that run servers.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache", nil
	}
	return os.UserCacheDir()
}

// cached returns a directory that fill has filled in this run or an earlier one,
// with what a list names.
func cached(name string, list []byte, fill func(dir string) error) (string, error) {
	parent, err := cacheDir()
	if err != nil {
		return "", err
	}
	final := filepath.Join(parent, "once", fmt.Sprintf("%s-%.16x", name, sha256.Sum256(list)))
	if _, err := os.Stat(final); !errors.Is(err, fs.ErrNotExist) {
		return final, err
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(final), "new-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := errors.Join(os.Chmod(dir, 0o755), fill(dir)); err != nil {
		return "", err
	}
	// Another process may have been faster.
	if err := os.Rename(dir, final); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return "", err
	}
	return final, nil
}
