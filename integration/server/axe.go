//go:build linux

package server

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed axe/package.json axe/package-lock.json
var axePackages embed.FS

// Axe returns the script of axe-core, which checks whether people with
// disabilities can use a page. npm installs it, if it is not in the cache.
func Axe(ctx context.Context) (string, error) {
	dir, err := npmCache(ctx, axePackages, "axe")
	if err != nil {
		return "", fmt.Errorf("install axe-core: %w", err)
	}
	script, err := os.ReadFile(filepath.Join(dir, "node_modules/axe-core/axe.min.js"))
	return string(script), err
}
