package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/modfile"
)

const tree = "../../.." // the root of this repository

// TestUsersCanGetAPreparedRelease prepares a release of these files. The proof
// in it runs without the network: users get the modules from the proxy that it
// fills, and third-party modules from the module cache.
func TestUsersCanGetAPreparedRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles what users would: long")
	}
	withoutNetwork(t)
	dir := snapshot(t)
	main := mustGit(t, dir, "rev-parse", "main")
	out := mustRelease(t, dir, "v0.1.0")

	if got := mustGit(t, dir, "rev-parse", "main"); got != main {
		t.Errorf("main has moved from %s to %s", main, got)
	}
	if head, tag := mustGit(t, dir, "rev-parse", "HEAD"), mustGit(t, dir, "rev-parse", "v0.1.0^{commit}"); head != tag {
		t.Errorf("checked out is %s, not the release, %s", head, tag)
	}
	if got := mustGit(t, dir, "status", "--porcelain"); got != "" {
		t.Errorf("files have changed:\n%s", got)
	}
	tags := strings.Fields(mustGit(t, dir, "tag", "--list"))
	for _, m := range published {
		tag := strings.TrimPrefix(m+"/v0.1.0", "./")
		if !slices.Contains(tags, tag) {
			t.Errorf("there is no tag %s", tag)
		}
		if !strings.Contains(out, tag) {
			t.Errorf("nobody is told to push %s:\n%s", tag, out)
		}
		for commit, replaces := range map[string]bool{"v0.1.0": false, "after/v0.1.0": true} {
			checkGoMod(t, dir, commit, filepath.Join(m, "go.mod"), replaces)
		}
	}
	if len(tags) != len(published) {
		t.Errorf("tags: %q", tags)
	}

	first := "# Changelog\n\n## Unreleased\n\n"
	later := mustGit(t, dir, "show", "after/v0.1.0:CHANGELOG.md")
	if !strings.HasPrefix(later, first+"## v0.1.0 - 2") || strings.Contains(mustGit(t, dir, "show", "v0.1.0:CHANGELOG.md"), "Unreleased") {
		t.Errorf("the changelog begins with\n%.100s", later)
	}

	// The workflow repeats the proof where the tag is checked out.
	mustRelease(t, dir, "-check", "v0.1.0")
	if notes := mustRelease(t, dir, "-notes", "v0.1.0"); !strings.HasPrefix(notes, "- the first change") {
		t.Errorf("the notes are %q", notes)
	}

	// main continues, and cannot release the version again.
	mustGit(t, dir, "checkout", "--quiet", "main")
	mustGit(t, dir, "merge", "--quiet", "--ff-only", "after/v0.1.0")
	mustBeRefused(t, dir, "not at HEAD", "-check", "v0.1.0")
	mustBeRefused(t, dir, "exists already", "v0.1.0")
	mustBeRefused(t, dir, "is not after v0.1.0", "v0.0.9")
	mustBeRefused(t, dir, `section "## Unreleased" of CHANGELOG.md is empty`, "v0.1.1")
}

// checkGoMod reads a go.mod of a commit. Each has to require siblings at v0.1.0.
func checkGoMod(t *testing.T, dir, commit, name string, replaces bool) {
	t.Helper()
	f, err := modfile.Parse(name, []byte(mustGit(t, dir, "show", commit+":"+filepath.ToSlash(name))), nil)
	if err != nil {
		t.Fatal(err)
	}
	siblings := 0
	for _, r := range f.Require {
		if isSibling(r.Mod.Path) {
			siblings++
			if r.Mod.Version != "v0.1.0" {
				t.Errorf("%s: %s requires %s", commit, name, r.Mod)
			}
		}
	}
	if got := len(f.Replace) > 0; got != (replaces && siblings > 0) {
		t.Errorf("%s: %s has %d replace directives", commit, name, len(f.Replace))
	}
}

// TestRefusedReleaseChangesNothing breaks one thing at a time.
func TestRefusedReleaseChangesNothing(t *testing.T) {
	withoutNetwork(t)
	original := snapshot(t)
	for _, c := range []struct {
		name, version, want string
		spoil               func(t *testing.T, dir string)
	}{
		{name: "no version", version: "", want: "one version is required"},
		{name: "not a version", version: "0.1.0", want: "is not a version"},
		{name: "a short version", version: "v0.1", want: "is not a version"},
		{name: "build metadata", version: "v0.1.0+linux", want: "is not a version"},
		{name: "a major version that import paths lack", version: "v2.0.0", want: "module paths that end in /v2"},
		{name: "a changed file", want: "README.md", spoil: func(t *testing.T, dir string) { appendTo(t, dir, "README.md", "more\n") }},
		{name: "a file that is not added", want: "new.go", spoil: func(t *testing.T, dir string) { appendTo(t, dir, "new.go", "package once\n") }},
		{name: "a used version", want: "refs/tags/store/pgstore/v0.1.0 exists already", spoil: func(t *testing.T, dir string) { mustGit(t, dir, "tag", "store/pgstore/v0.1.0") }},
		{name: "a later version", want: "is not after v0.2.0", spoil: func(t *testing.T, dir string) { mustGit(t, dir, "tag", "v0.2.0") }},
		{name: "an old branch", want: "refs/heads/release/v0.1.0 exists already", spoil: func(t *testing.T, dir string) { mustGit(t, dir, "branch", "release/v0.1.0") }},
		{name: "no changelog section", want: `no section "## Unreleased"`, spoil: rewrite("CHANGELOG.md", "## Unreleased", "## Soon")},
		{name: "an empty changelog section", want: "is empty", spoil: rewrite("CHANGELOG.md", "- the first change", "### Added")},
		{name: "a changelog that has the version", want: "already has a section", spoil: rewrite("CHANGELOG.md", "- the first change", "- a change\n\n## v0.1.0 - 2026-01-01")},
		{name: "a module on no list", want: "neither as published nor as unpublished", spoil: func(t *testing.T, dir string) {
			must(t, os.Mkdir(filepath.Join(dir, "new"), 0o755))
			appendTo(t, dir, "new/go.mod", "module github.com/effectively-once/once/new\n")
			commit(t, dir)
		}},
		{name: "a module by another name", want: "declares the module", spoil: rewrite("httponce/go.mod", "once/httponce", "once/http")},
		{name: "a published module that requires an unpublished one", want: "which is not", spoil: rewrite("httponce/go.mod",
			"github.com/effectively-once/once v0.0.0", "github.com/effectively-once/once v0.0.0\n\tgithub.com/effectively-once/once/examples v0.0.0")},
		{name: "a replace directive for a module of others", want: "replaces github.com/gowebpki/jcs", spoil: func(t *testing.T, dir string) {
			appendTo(t, dir, "httponce/go.mod", "replace github.com/gowebpki/jcs => github.com/gowebpki/jcs v1.0.0\n")
			commit(t, dir)
		}},
		{name: "an exclude directive", want: "excludes github.com/gowebpki/jcs@v1.0.0", spoil: func(t *testing.T, dir string) {
			appendTo(t, dir, "httponce/go.mod", "exclude github.com/gowebpki/jcs v1.0.0\n")
			commit(t, dir)
		}},
		{name: "a go.sum that lacks a module", want: "missing go.sum entry", spoil: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "httponce", "go.sum"), nil, 0o644))
			commit(t, dir)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.spoil == nil {
				mustBeRefused(t, original, c.want, c.version)
				return
			}
			dir := filepath.Join(t.TempDir(), "clone")
			mustGit(t, ".", "clone", "--quiet", "--shared", original, dir)
			identify(t, dir)
			c.spoil(t, dir)
			mustBeRefused(t, dir, c.want, "v0.1.0")
		})
	}
}

// TestInterruptedReleaseChangesNothing interrupts the proof, when all commits
// and tags are made.
func TestInterruptedReleaseChangesNothing(t *testing.T) {
	dir := snapshot(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	t.Chdir(dir)
	before := state(t, dir)
	out := writerFunc(func(p []byte) (int, error) {
		interrupt()
		return len(p), nil
	})
	var complaints bytes.Buffer
	if code := run(ctx, []string{"v0.1.0"}, out, &complaints); code != exitFailed {
		t.Errorf("exit code %d: %s", code, &complaints)
	}
	if after := state(t, dir); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// TestReleaseThatCannotBeCheckedOutChangesNothing locks the files.
func TestReleaseThatCannotBeCheckedOutChangesNothing(t *testing.T) {
	dir := snapshot(t)
	before := state(t, dir)
	r, err := prepare(t.Context(), dir, filepath.Join(t.TempDir(), "clone"), "v0.1.0", time.Now())
	must(t, err)
	lock := filepath.Join(dir, ".git", "index.lock")
	must(t, os.WriteFile(lock, nil, 0o644))
	if err := r.deliver(t.Context(), dir); err == nil {
		t.Error("it was checked out")
	}
	if after := state(t, dir); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	must(t, os.Remove(lock))
	must(t, r.deliver(t.Context(), dir))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestEachModuleOfTheWorkspaceIsPublishedOrDeclaredUnpublished(t *testing.T) {
	modules, err := readModules(tree) // refuses modules on no list
	must(t, err)
	text, err := os.ReadFile(filepath.Join(tree, "go.work"))
	must(t, err)
	work, err := modfile.ParseWork("go.work", text, nil)
	must(t, err)
	used := map[string]bool{}
	for _, u := range work.Use {
		used[filepath.ToSlash(filepath.Clean(u.Path))] = true
	}
	for _, m := range modules {
		if m.published() && !used[m.dir] {
			t.Errorf("%s is published and not in go.work, so nothing tests it with the others", m.dir)
		}
		delete(used, m.dir)
	}
	for dir := range used {
		t.Errorf("go.work uses %s, where there is no module", dir)
	}
	for dir, why := range unpublished {
		if why == "" {
			t.Errorf("%s is unpublished, and nothing says why", dir)
		}
	}
}

func TestGoSumKeepsTheOrderOfTheGoCommand(t *testing.T) {
	got := mergeSums([]byte(`a.example/a v1.0.0 h1:1=
a.example/a v1.0.0/go.mod h1:2=
github.com/effectively-once/once v0.1.0 h1:old=
github.com/effectively-once/once v0.1.0/go.mod h1:old=
z.example/z v1.0.0/go.mod h1:3=
`), []string{rootPath + " v0.2.0 h1:4=", rootPath + " v0.2.0/go.mod h1:5="})
	want := `a.example/a v1.0.0 h1:1=
a.example/a v1.0.0/go.mod h1:2=
github.com/effectively-once/once v0.2.0 h1:4=
github.com/effectively-once/once v0.2.0/go.mod h1:5=
z.example/z v1.0.0/go.mod h1:3=
`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// snapshot is a repository with the files of this one as they are, and with a
// changelog of one entry.
func snapshot(t *testing.T) string {
	t.Helper()
	names, err := git(t.Context(), tree, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Skipf("these files are not in a git repository: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "once")
	for name := range strings.SplitSeq(strings.TrimSuffix(names, "\x00"), "\x00") {
		source, copied := filepath.Join(tree, name), filepath.Join(dir, name)
		info, err := os.Lstat(source)
		if os.IsNotExist(err) {
			continue // it is deleted, and that is not committed
		}
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(copied), 0o755))
		text, err := os.ReadFile(source)
		must(t, err)
		must(t, os.WriteFile(copied, text, info.Mode().Perm()))
	}
	must(t, os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte("# Changelog\n\n## Unreleased\n\n- the first change\n"), 0o644))
	mustGit(t, dir, "init", "--quiet", "--initial-branch=main")
	identify(t, dir)
	commit(t, dir)
	return dir
}

// fillCache gets what the published modules need by themselves. The workspace selects later versions of some.
var fillCache = sync.OnceValue(func() error {
	modules, err := readModules(tree)
	for _, m := range modules {
		if err == nil && m.published() {
			cmd := exec.Command("go", "list", "-mod=readonly", "-deps", "-test", "./...")
			cmd.Env = append(os.Environ(), "GOWORK=off")
			_, err = output(cmd, filepath.Join(tree, m.dir))
		}
	}
	return err
})

func withoutNetwork(t *testing.T) {
	t.Helper()
	must(t, fillCache())
	t.Setenv("GOPROXY", "off")
}

func identify(t *testing.T, dir string) {
	t.Helper()
	for name, value := range map[string]string{
		"user.name": "Ada", "user.email": "ada@example.com", "commit.gpgsign": "false", "tag.gpgsign": "false", "gc.auto": "0",
	} {
		mustGit(t, dir, "config", name, value)
	}
}

func commit(t *testing.T, dir string) {
	t.Helper()
	mustGit(t, dir, "add", "--all")
	mustGit(t, dir, "commit", "--quiet", "--message", "change something")
}

// rewrite is a committed change of a file.
func rewrite(name, from, to string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		file := filepath.Join(dir, filepath.FromSlash(name))
		text, err := os.ReadFile(file)
		must(t, err)
		changed := strings.Replace(string(text), from, to, 1)
		if changed == string(text) {
			t.Fatalf("%s has no %q", name, from)
		}
		must(t, os.WriteFile(file, []byte(changed), 0o644))
		commit(t, dir)
	}
}

func appendTo(t *testing.T, dir, name, text string) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(dir, filepath.FromSlash(name)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	_, err = file.WriteString(text)
	must(t, err)
	must(t, file.Close())
}

func mustRelease(t *testing.T, dir string, args ...string) string {
	t.Helper()
	t.Chdir(dir)
	var out, complaints bytes.Buffer
	if code := run(t.Context(), args, &out, &complaints); code != 0 {
		t.Fatalf("release %q: exit code %d\n%s%s", args, code, &out, &complaints)
	}
	return out.String()
}

// mustBeRefused makes sure that a refusal says why, and leaves the repository
// and the temporary directory as they were.
func mustBeRefused(t *testing.T, dir, want string, args ...string) {
	t.Helper()
	t.Chdir(dir)
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	before := state(t, dir)
	var out, complaints bytes.Buffer
	if code := run(t.Context(), args, &out, &complaints); code == 0 || !strings.Contains(complaints.String(), want) {
		t.Errorf("release %q: exit code %d, without %q:\n%s%s", args, code, want, &out, &complaints)
	}
	if after := state(t, dir); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if left, err := filepath.Glob(filepath.Join(temp, "release*")); err != nil || len(left) > 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}

// state is what a refused release may not change.
func state(t *testing.T, dir string) string {
	t.Helper()
	return strings.Join([]string{
		mustGit(t, dir, "rev-parse", "HEAD"), mustGit(t, dir, "for-each-ref"), mustGit(t, dir, "status", "--porcelain"),
	}, "\n")
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(t.Context(), dir, args...)
	must(t, err)
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
