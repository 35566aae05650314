package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// proof gets a release as users will: from a module proxy, which the go command
// fills from the tags, as the public proxy does.
type proof struct {
	out     io.Writer
	version string
	work    string
	proxies string // for third-party modules
}

// newProof takes third-party modules from the module cache of the user, and
// what is missing there from the user's proxy.
func newProof(ctx context.Context, out io.Writer, work, version string) (*proof, error) {
	env, err := output(exec.CommandContext(ctx, "go", "env", "-json", "GOMODCACHE", "GOPROXY"), ".")
	if err != nil {
		return nil, err
	}
	var user struct{ GOMODCACHE, GOPROXY string }
	if err := json.Unmarshal([]byte(env), &user); err != nil {
		return nil, err
	}
	p := &proof{out: out, version: version, work: work, proxies: fileProxy(user.GOMODCACHE)}
	if user.GOPROXY != "off" {
		p.proxies += "," + user.GOPROXY
	}
	return p, nil
}

// fileProxy returns the URL of a module cache as a proxy.
func fileProxy(cache string) string {
	return "file://" + filepath.ToSlash(filepath.Join(cache, "cache", "download"))
}

// run proves that the version, which is tagged at HEAD of the repository, can
// be got and used.
func (p *proof) run(ctx context.Context, repository string) error {
	modules, err := readModules(repository)
	if err != nil {
		return err
	}
	fmt.Fprintf(p.out, "Getting %s as users will. If little is cached, this compiles for some minutes.\n", p.version)
	for _, step := range []func() error{
		func() error { return p.checkTree(ctx, repository, modules) },
		func() error { return p.fillProxy(ctx, repository, modules) },
		func() error { return p.checkSums(ctx, repository, modules) },
		func() error { return p.useStore(ctx, repository) },
		func() error { return p.installCommand(ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// checkTree reads what the tags release.
func (p *proof) checkTree(ctx context.Context, repository string, modules []*module) error {
	head, err := git(ctx, repository, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	for _, m := range modules {
		if !m.published() {
			continue
		}
		if err := m.checkReleased(p.version); err != nil {
			return err
		}
		commit, err := git(ctx, repository, "rev-parse", "--verify", "refs/tags/"+m.tag(p.version)+"^{commit}")
		if err != nil {
			return err
		}
		if commit != head {
			return fmt.Errorf("the tag %s is at %s, not at HEAD, %s", m.tag(p.version), commit, head)
		}
	}
	changelog, err := os.ReadFile(filepath.Join(repository, changelogName))
	if err != nil {
		return err
	}
	_, err = findSection(string(changelog), p.version)
	return err
}

// fillProxy makes the proxy: a module cache in which the go command has put the
// modules, from the tags. Git reads the repository in place of the forge.
func (p *proof) fillProxy(ctx context.Context, repository string, modules []*module) error {
	var all []string
	for _, m := range modules {
		if m.published() {
			all = append(all, m.path+"@"+p.version)
		}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"mod", "download"}, all...)...)
	cmd.Env = append(p.env("proxy"),
		"GOPROXY=direct",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+filepath.ToSlash(repository)+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+rootPath)
	_, err := output(cmd, p.work)
	return err
}

// checkSums loads all packages and tests of the published modules. The go
// command fails if go.sum lacks one of their modules or has another hash.
func (p *proof) checkSums(ctx context.Context, repository string, modules []*module) error {
	for _, m := range modules {
		if !m.published() {
			continue
		}
		fmt.Fprintf(p.out, "  %s@%s: go.mod and go.sum\n", m.path, p.version)
		if _, err := output(p.asUser(ctx, "go", "list", "-mod=readonly", "-deps", "-test", "./..."), filepath.Join(repository, m.dir)); err != nil {
			return err
		}
	}
	return nil
}

// useStore writes a program in a module of its own, builds it and runs it.
func (p *proof) useStore(ctx context.Context, repository string) error {
	const program, store = "integration/cmd/release/internal/program/main.go", rootPath + "/store/pgstore"
	fmt.Fprintf(p.out, "  go get %s@%s, and a program\n", store, p.version)
	text, err := os.ReadFile(filepath.Join(repository, program))
	if err != nil {
		return err
	}
	dir := filepath.Join(p.work, "shop")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), text, 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"go", "mod", "init", "example.com/shop"},
		{"go", "get", store + "@" + p.version},
		{"go", "build", "-mod=readonly", "-trimpath", "-o", filepath.Join(p.work, "program"), "."},
		{filepath.Join(p.work, "program")},
	} {
		if _, err := output(p.asUser(ctx, args...), dir); err != nil {
			return err
		}
	}
	return nil
}

// installCommand installs the command and asks it for its version.
func (p *proof) installCommand(ctx context.Context) error {
	const command = rootPath + "/cmd/once"
	fmt.Fprintf(p.out, "  go install %s@%s, and once version\n", command, p.version)
	install := p.asUser(ctx, "go", "install", "-trimpath", command+"@"+p.version)
	bin := filepath.Join(p.work, "bin")
	install.Env = append(install.Env, "GOBIN="+bin)
	if _, err := output(install, p.work); err != nil {
		return err
	}
	said, err := output(p.asUser(ctx, filepath.Join(bin, "once"), "version"), p.work)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(said, "once "+p.version+" ") {
		return fmt.Errorf("once version prints %q, not %s", said, p.version)
	}
	return nil
}

// asUser is a command of a user, who knows the modules from the proxy only.
func (p *proof) asUser(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(p.env("user"), "GOPROXY="+fileProxy(filepath.Join(p.work, "proxy"))+","+p.proxies)
	return cmd
}

// env has the go command use a new module cache, and none of the user's
// settings. The modules are in no checksum database yet. In the build cache,
// what -trimpath has compiled does not depend on the directory, so that a second
// proof is quick.
func (p *proof) env(cache string) []string {
	return append(os.Environ(),
		"GOMODCACHE="+filepath.Join(p.work, cache), "GOFLAGS=-modcacherw",
		"GOWORK=off", "GOENV=off", "GOPRIVATE=", "GONOPROXY=none", "GONOSUMDB="+rootPath+","+rootPath+"/*", "GOSUMDB=off", "CGO_ENABLED=0")
}
