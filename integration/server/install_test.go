//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machine is an apt with files in a directory of the test and an apt-get that
// only records its arguments.
type machine struct {
	*apt
	calls  []string
	policy []string // the policy at each call
	fail   map[string]int
}

func newMachine(t *testing.T) *machine {
	dir := t.TempDir()
	m := &machine{fail: map[string]int{}}
	m.apt = &apt{policy: filepath.Join(dir, "policy-rc.d"), lists: dir, get: func(_ context.Context, args ...string) error {
		text, _ := os.ReadFile(m.apt.policy)
		m.calls, m.policy = append(m.calls, strings.Join(args, " ")), append(m.policy, string(text))
		if m.fail[args[0]]--; m.fail[args[0]] >= 0 {
			return fmt.Errorf("apt-get %s fails", args[0])
		}
		return nil
	}}
	return m
}

func (m *machine) withLists(t *testing.T) *machine {
	put(t, filepath.Join(m.lists, "debian_main_Packages.lz4"), "")
	return m
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestNoServiceStartsWhilePackagesAreInstalled(t *testing.T) {
	theirs := "#!/bin/sh\nexit 0\n"
	for name, c := range map[string]struct {
		before func(*machine) // the state before the tool runs
		fails  int
		after  string // the final policy; empty for none
	}{
		"no policy":                              {func(*machine) {}, 0, ""},
		"no policy, and it fails":                {func(*machine) {}, 9, ""},
		"a policy":                               {func(m *machine) { put(t, m.apt.policy, theirs) }, 0, theirs},
		"a policy, and it fails":                 {func(m *machine) { put(t, m.apt.policy, theirs) }, 9, theirs},
		"killed with no policy":                  {func(m *machine) { put(t, m.apt.policy, refusal) }, 0, ""},
		"killed with a policy":                   {func(m *machine) { put(t, m.apt.policy, refusal); put(t, m.aside(), theirs) }, 0, theirs},
		"killed before it wrote":                 {func(m *machine) { put(t, m.aside(), theirs) }, 0, theirs},
		"killed while it wrote":                  {func(m *machine) { put(t, m.apt.policy, refusal[:9]); put(t, m.aside(), theirs) }, 0, theirs},
		"killed with a policy, and now it fails": {func(m *machine) { put(t, m.apt.policy, refusal); put(t, m.aside(), theirs) }, 9, theirs},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t).withLists(t)
			c.before(m)
			m.fail["install"] = c.fails
			if err := m.install(t.Context(), []string{"some"}); (err != nil) != (c.fails > 0) {
				t.Fatal(err)
			}
			for n, policy := range m.policy {
				if policy != refusal {
					t.Errorf("during %q the policy is %q", m.calls[n], policy)
				}
			}
			text, err := os.ReadFile(m.apt.policy)
			if string(text) != c.after || (c.after == "") != errors.Is(err, os.ErrNotExist) {
				t.Errorf("in the end the policy is %q, %v, want %q", text, err, c.after)
			}
			if _, err := os.Stat(m.aside()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the policy set aside has stayed: %v", err)
			}
		})
	}
}

func TestPolicyMayBeExecuted(t *testing.T) {
	m := newMachine(t)
	if err := m.forbid(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(m.apt.policy); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("%v, %v: invoke-rc.d takes no notice of a policy that it cannot execute", info.Mode(), err)
	}
}

func TestPackageListsAreFetchedWhenTheyHelp(t *testing.T) {
	const install = "install -y --no-install-recommends some more"
	for name, c := range map[string]struct {
		lists bool
		fails int
		calls []string
	}{
		"lists":          {true, 0, []string{install}},
		"no lists":       {false, 0, []string{"update", install}},
		"outdated lists": {true, 1, []string{install, "update", install}},
		"failing":        {true, 2, []string{install, "update", install}},
	} {
		m := newMachine(t)
		if c.lists {
			m.withLists(t)
		}
		m.fail["install"] = c.fails
		err := m.install(t.Context(), []string{"some", "more"})
		if !slices.Equal(m.calls, c.calls) || (err != nil) != (c.fails > 1) {
			t.Errorf("%s: apt-get was told %q (%v), want %q", name, m.calls, err, c.calls)
		}
	}
}

func TestSecondInstallationWaitsForTheFirst(t *testing.T) {
	m := newMachine(t).withLists(t)
	unlock, err := m.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.install(ctx, []string{"some"}) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || len(m.calls) > 0 {
		t.Errorf("%v after %q, want that it has waited in vain", err, m.calls)
	}
	unlock()
	if err := m.install(t.Context(), []string{"some"}); err != nil {
		t.Error(err)
	}
}

func TestNewestPostgresIsTheHighestNumber(t *testing.T) {
	nine, fifteen := "/usr/lib/postgresql/9.6/bin/initdb", "/usr/lib/postgresql/15/bin/initdb"
	if majorVersion(nine) >= majorVersion(fifteen) {
		t.Errorf("%s is taken for newer than %s", nine, fifteen)
	}
}

func TestOnlyPackagesOfMissingProgramsAreInstalled(t *testing.T) {
	for want, programs := range map[string][]string{
		"":        {"sh dash", "ls coreutils"},
		"one":     {"sh dash", "no-such-program one", "nor-this-one one"},
		"one two": {"no-such-program one", "sh dash", "nor-this-one two"},
	} {
		if got, found := absent(programs...); got != want || found != (want == "") {
			t.Errorf("of %q, %q are missing, %v; want %q", programs, got, found, want)
		}
	}
}
