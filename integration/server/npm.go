//go:build linux

package server

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// npmCache returns the directory where npm has installed what the lock file in a
// folder of files names, in a cache of programs.
func npmCache(ctx context.Context, files embed.FS, folder string, args ...string) (string, error) {
	lock, err := files.ReadFile(path.Join(folder, "package-lock.json"))
	if err != nil {
		return "", err
	}
	return cached(strings.ReplaceAll(folder, "/", ""), lock, func(dir string) error { return npmInstall(ctx, files, folder, dir, args) })
}

// npmInstall installs what the lock file names, and runs no scripts of packages.
func npmInstall(ctx context.Context, files embed.FS, folder, dir string, args []string) error {
	npm, err := findProgram("npm")
	if err != nil {
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
