//go:build linux

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// longFirst lists the slowest packages, slowest first. They start first, so
// that the run does not wait for them at the end.
var longFirst = []string{
	"store/pgstore", "integration/cmd/release", "integration/sqlstore", "cmd/once", "integration/brokers", "integration/redisstore",
	"integration/natsstore", "integration/consume", "cmd/once/internal/serve", "integration/faults", "store/cosmosstore",
	"integration/lostreply", "integration/docs", "integration/server", "integration/crash", "store/dynamostore", "store/cas",
	"integration/publish", "cmd/once/internal/target", "integration/faults/wrongclock", "integration/failover", "store/redisstore",
	"integration/tiered", "integration/outboxlog", "outbox", "integration/history", "integration/cosmosstore", "httponce",
	"integration/dynamostore", "integration/httpclients", "integration/lostreply/versions", "integration/cmd/suite",
}

// pkg is a package.
type pkg struct {
	path  string // import path
	dir   string
	name  string // directory relative to the root
	tests bool   // it has tests
}

// batch is what one go command tests: the workspace, or a module outside it.
type batch struct {
	dir      string // where the go command runs
	apart    bool   // the module is not in the workspace: GOWORK=off
	packages []pkg
}

// plan finds the requested packages.
func (o *options) plan(ctx context.Context) ([]*batch, error) {
	out, err := goOutput(ctx, ".", nil, "env", "GOWORK")
	if err != nil {
		return nil, err
	}
	root := filepath.Dir(strings.TrimSpace(out))
	patterns := o.packages
	if len(patterns) == 0 {
		patterns = []string{"work"}
	}
	main := &batch{dir: "."} // patterns come from the caller
	if main.packages, err = listPackages(ctx, root, main, patterns); err != nil {
		return nil, err
	}
	slices.SortStableFunc(main.packages, func(a, b pkg) int { return cmp.Compare(rank(a.name), rank(b.name)) })
	batches := []*batch{main}
	if len(o.packages) > 0 {
		return batches, nil
	}
	modules, err := modulesApart(ctx, root)
	if err != nil {
		return nil, err
	}
	for _, dir := range modules {
		b := &batch{dir: dir, apart: true}
		if b.packages, err = listPackages(ctx, root, b, []string{"./..."}); err != nil {
			return nil, err
		}
		batches = append(batches, b)
	}
	return batches, nil
}

func rank(name string) int {
	if i := slices.Index(longFirst, name); i >= 0 {
		return i
	}
	return len(longFirst)
}

// modulesApart returns the directories of modules that are not in the
// workspace.
func modulesApart(ctx context.Context, root string) ([]string, error) {
	out, err := goOutput(ctx, root, nil, "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, err
	}
	inWorkspace := strings.Fields(out)
	var apart []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || path != root && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case entry.Name() == "go.mod" && !slices.Contains(inWorkspace, filepath.Dir(path)):
			apart = append(apart, filepath.Dir(path))
		}
		return nil
	})
	return apart, err
}

const listed = "{{.ImportPath}}\t{{.Dir}}\t{{len .TestGoFiles}}{{len .XTestGoFiles}}"

func listPackages(ctx context.Context, root string, b *batch, patterns []string) ([]pkg, error) {
	out, err := goOutput(ctx, b.dir, b.env(), append([]string{"list", "-f", listed}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var all []pkg
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		fields := strings.Split(lines.Text(), "\t")
		name, err := filepath.Rel(root, fields[1])
		if err != nil {
			return nil, err
		}
		all = append(all, pkg{path: fields[0], dir: fields[1], name: name, tests: fields[2] != "00"})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no packages in %s for %v", b.dir, patterns)
	}
	return all, nil
}

func (b *batch) env() []string {
	if b.apart {
		return []string{"GOWORK=off"}
	}
	return nil
}

func goOutput(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, complaint.String())
	}
	return out.String(), nil
}
