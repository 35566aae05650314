//go:build linux

package server

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// npmCache returns the directory where npm has installed what the lock file in a
// folder of files names, in a cache of programs.
func npmCache(ctx context.Context, files embed.FS, folder string, args ...string) (string, error) {
	parent, err := cacheDir()
	if err != nil {
		return "", err
	}
	lock, err := files.ReadFile(path.Join(folder, "package-lock.json"))
	if err != nil {
		return "", err
	}
	name := strings.ReplaceAll(folder, "/", "")
	final := filepath.Join(parent, "once", fmt.Sprintf("%s-%.16x", name, sha256.Sum256(lock)))
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
	if err := npmInstall(ctx, files, folder, dir, args); err != nil {
		return "", err
	}
	// Another process may have been faster.
	if err := os.Rename(dir, final); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, syscall.ENOTEMPTY) {
		return "", err
	}
	return final, nil
}

// npmInstall installs what the lock file names, and runs no scripts of packages.
func npmInstall(ctx context.Context, files embed.FS, folder, dir string, args []string) error {
	npm, err := findProgram("npm")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := files.ReadFile(path.Join(folder, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, npm, append([]string{"ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return nil
}
