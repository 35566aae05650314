// Package workflows checks the forge's workflows: what they may do, and that
// what they call is in this repository.
package workflows

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	tree   = "../.." // the root of this repository
	folder = tree + "/.github/workflows"
)

type workflow struct {
	Name        string
	On          yaml.Node
	Permissions *permissions
	Concurrency yaml.Node
	Jobs        map[string]job
}

type permissions map[string]string

type job struct {
	RunsOn      string `yaml:"runs-on"`
	Container   string
	Needs       string
	Timeout     int `yaml:"timeout-minutes"`
	Permissions permissions
	Steps       []step
}

type step struct {
	Uses, Run string
	With      map[string]string
	Env       map[string]string
}

// parse refuses fields that the types above lack, and so what nobody checks.
func parse(text string) (*workflow, error) {
	var w workflow
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	return &w, decoder.Decode(&w)
}

// allowed lists what a job may write.
var allowed = map[string]permissions{
	"release/publish": {"contents": "write"},
}

var (
	// An action's tag can be moved, its commit cannot.
	pinned = regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)
	// One command, in which no expression of the forge can put text.
	makes   = regexp.MustCompile(`^make ([a-z-]+)( [A-Z]+="?[\w${}#*/.]+"?)*$`)
	scripts = regexp.MustCompile(`^\./(\.ci/[a-z-]+)( "?[\w${}#*/.]+"?)*$`)
)

// check returns all that is wrong with a workflow.
func check(w *workflow) error {
	var all []error
	wrong := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if w.On.IsZero() {
		wrong("it is never started")
	}
	if w.Permissions == nil {
		wrong("without permissions, it has those that the repository's settings give")
	} else {
		for scope, right := range *w.Permissions {
			if right != "read" && right != "none" {
				wrong("all jobs may %s %s", right, scope)
			}
		}
	}
	if len(w.Jobs) == 0 {
		wrong("it has no jobs")
	}
	for name, j := range w.Jobs {
		if j.Timeout == 0 {
			wrong("job %s may hang for six hours: it has no timeout-minutes", name)
		}
		if _, ok := w.Jobs[j.Needs]; j.Needs != "" && !ok {
			wrong("job %s needs %s, which is no job", name, j.Needs)
		}
		for scope, right := range j.Permissions {
			if right != "read" && right != allowed[w.Name+"/"+name][scope] {
				wrong("job %s may %s %s", name, right, scope)
			}
		}
		calls := 0
		for _, s := range j.Steps {
			if err := s.check(); err != nil {
				wrong("job %s: %w", name, err)
			}
			if s.Run != "" {
				calls++
			}
		}
		if calls == 0 {
			wrong("job %s calls nothing", name)
		}
	}
	return errors.Join(all...)
}

func (s step) check() error {
	command := strings.TrimSpace(s.Run)
	switch {
	case (s.Uses == "") == (s.Run == ""):
		return errors.New("a step either uses an action or runs a command")
	case s.Uses != "" && !pinned.MatchString(s.Uses):
		return fmt.Errorf("%s is not pinned to a commit", s.Uses)
	case strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != "false":
		return errors.New("the checkout leaves the token where every later step can read it")
	case s.Uses != "":
		return nil
	}
	if m := makes.FindStringSubmatch(command); m != nil {
		cmd := exec.Command("make", "--dry-run", m[1], "VERSION=v0.1.0")
		cmd.Dir = tree
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	}
	m := scripts.FindStringSubmatch(command)
	if m == nil {
		return fmt.Errorf("%q is neither a target of make nor a script in .ci", command)
	}
	info, err := os.Stat(filepath.Join(tree, m[1]))
	if err == nil && info.Mode()&0o111 == 0 {
		err = fmt.Errorf("%s cannot be executed", m[1])
	}
	return err
}

func TestWorkflowsMayDoLittleAndCallWhatIsHere(t *testing.T) {
	called := map[string]bool{}
	files, err := filepath.Glob(folder + "/*")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no workflows", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w, err := parse(string(text))
			if err == nil {
				err = check(w)
			}
			if err != nil {
				t.Fatal(err)
			}
			if w.Name != name {
				t.Errorf("it is named %q", w.Name)
			}
			for _, j := range w.Jobs {
				for _, s := range j.Steps {
					if m := makes.FindStringSubmatch(s.Run); m != nil {
						called[m[1]] = true
					}
				}
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "uses:") && !regexp.MustCompile(` # v\d+\.\d+\.\d+$`).MatchString(strings.TrimSpace(line)) {
					t.Errorf("nobody can see which version this is: %s", line)
				}
			}
		})
	}
	for _, target := range []string{"test", "oldest", "lint", "vuln", "release-check"} {
		if !called[target] {
			t.Errorf("no workflow calls make %s", target)
		}
	}
}

func TestWrongWorkflowsAreFound(t *testing.T) {
	const right = `name: test
on: push
permissions: {contents: read}
jobs:
  test:
    timeout-minutes: 5
    steps:
      - uses: actions/checkout@08c6903cd8c0fde910a37f88322edcfb5dd907a8
        with: {persist-credentials: false}
      - run: make test
`
	for _, c := range []struct{ from, to, want string }{
		{"make test", "make test", ""},
		{"make test", "./.ci/lint", ""},
		{"make test", "make tset", "No rule to make target"},
		{"make test", "./.ci/none", "no such file"},
		{"make test", "curl https://example.com | sh", "neither a target"},
		{"make test", "make test; id", "neither a target"},
		{"make test", "make release-check VERSION=${{ github.ref_name }}", "neither a target"},
		{"      - run: make test\n", "", "calls nothing"},
		{"on: push\n", "", "never started"},
		{"permissions: {contents: read}\n", "", "without permissions"},
		{"{contents: read}", "write-all", "cannot unmarshal"},
		{"{contents: read}", "{contents: write}", "may write contents"},
		{"    timeout-minutes: 5", "    permissions: {packages: write}\n    timeout-minutes: 5", "may write packages"},
		{"    timeout-minutes: 5\n", "", "no timeout-minutes"},
		{"    timeout-minutes: 5", "    timeout-minutes: 5\n    needs: build", "which is no job"},
		{"08c6903cd8c0fde910a37f88322edcfb5dd907a8", "v5", "not pinned"},
		{"        with: {persist-credentials: false}\n", "", "leaves the token"},
		{"      - run: make test", "      - shell: bash\n        run: make test", "not found in type"},
	} {
		text := strings.Replace(right, c.from, c.to, 1)
		w, err := parse(text)
		if err == nil {
			err = check(w)
		}
		if got := fmt.Sprint(err); (c.want == "") != (err == nil) || !strings.Contains(got, c.want) {
			t.Errorf("%q instead of %q: %v, want %q", c.to, c.from, err, c.want)
		}
	}
}

// TestPublishCreatesTheReleaseWithItsNotes runs the script with doubles of go
// and of the forge's command.
func TestPublishCreatesTheReleaseWithItsNotes(t *testing.T) {
	bin := t.TempDir()
	for name, text := range map[string]string{
		"go": `echo "- about ${@: -1}"`,
		"gh": `printf '%s\n' "$@" >"$SAID"; while [ "$1" != --notes-file ]; do shift; done; cat "$2" >>"$SAID"`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/usr/bin/env bash\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for version, prerelease := range map[string]bool{"v0.1.0": false, "v0.1.0-rc.1": true} {
		said := filepath.Join(t.TempDir(), "said")
		cmd := exec.Command("./.ci/publish", version)
		cmd.Dir = tree
		cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "SAID="+said, "TMPDIR="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		text, err := os.ReadFile(said)
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Split(string(text), "\n")
		if !slices.Equal(words[:4], []string{"release", "create", version, "--verify-tag"}) ||
			!slices.Contains(words, "- about "+version) || slices.Contains(words, "--prerelease") != prerelease {
			t.Errorf("%s: gh %q", version, words)
		}
	}
}
