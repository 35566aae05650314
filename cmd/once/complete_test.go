package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

func TestCompletionWaitsTwoSecondsForAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		begun := time.Now()
		found := stored(t.Context(), operationNames, func(context.Context) (*session, error) {
			<-answer // whatever its context says
			return nil, errors.New("too late")
		})
		if waited := time.Since(begun); len(found) > 0 || waited != 2*time.Second {
			t.Errorf("completion found %v after %v", found, waited)
		}
		close(answer)
	})
}

// Whoever shares a store chooses names in it. None of them becomes a flag, another
// line, or what the reader does not see.
func TestCompletionLeavesOutWhatIsNotLegible(t *testing.T) {
	from := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	open := func(ctx context.Context) (*session, error) {
		s, err := target.Open(ctx, from, &target.Options{Create: true})
		if err == nil {
			err = s.Tables.Migrate(ctx)
		}
		return &session{Target: s}, err
	}
	s, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, operation := range []string{"pay", "pay/charge", "--yes", "-y", "pa\u202ey", "p\u0430y", "pay\u00a0"} {
		if err := bring(t.Context(), s.Store, once.Key{Operation: operation, ID: "1"}, once.Unknown); err != nil {
			t.Fatal(err)
		}
	}
	found := stored(t.Context(), operationNames, open)
	slices.Sort(found)
	if want := []string{"pay", "pay/charge"}; !slices.Equal(found, want) {
		t.Errorf("completion offers %q, want %q", found, want)
	}
}

func TestBashReplacesTheEndOfALine(t *testing.T) {
	const breaks = " \t\n\"'@><=;|&(:"
	for _, test := range []struct{ line, word, want string }{
		{"once keys get ", "pay", "pay"},
		{"once keys get pa", "pay", "pay"},
		{"once keys get  a\\ ", "a b", "a\\ b"},
		{"once keys get shop:pa", "shop:pay", "pay"},
		{"once keys get a\\ b:", "a b:c", "c"},
		{"once keys list --operation=pa", "--operation=pay", "pay"},
		{"once keys get 'a ", "a b", "a b"},
		{"once keys get \"a ", "a b", "a b"},
		{"once keys list --operation ''p", "pay", "pay"},
	} {
		line := splitLine(test.line, breaks)
		got, ok := line.replace(test.word)
		if last := line.words[len(line.words)-1]; !ok || got != test.want || !strings.HasPrefix(test.word, last) {
			t.Errorf("%s: the last word is %q, and is replaced by %s, want %s", test.line, last, got, test.want)
		}
	}
	line := splitLine("once --target 'a b' \"c\\\"d\" e\\ f ''", breaks)
	if want := []string{"once", "--target", "a b", "c\"d", "e f", ""}; !slices.Equal(line.words, want) {
		t.Errorf("the words are %q, want %q", line.words, want)
	}
}

// Other programs choose the names: bash must not run what is in them.
func TestBashRunsNothingOfAName(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	for _, name := range []string{"x y", "x$(id)", "x`id`", "x'y", `x"y`, `x\y`, "x;id", "x|id", "x&id", "x>y", "x*", "x?", "x[a]", "x{a,b}",
		"x!y", "x#y", "x~", "$HOME", "~", "#x", "xé", "x(y)", "x=:y"} {
		for _, quote := range []string{"", "'", `"`} {
			text, ok := splitLine("once keys get "+quote, "").replace(name)
			if !ok && quote == "" {
				t.Errorf("%q is not offered", name)
			}
			if !ok {
				continue
			}
			typed := quote + text + quote
			got, err := exec.Command(bash, "--norc", "-O", "nullglob", "-c", "printf %s "+typed).Output()
			if err != nil || string(got) != name {
				t.Errorf("%s is %q to bash, want %q: %v", typed, got, name, err)
			}
		}
	}
}
