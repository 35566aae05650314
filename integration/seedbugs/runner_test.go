package seedbugs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// subjectVar makes this test binary the one that a runner runs.
const subjectVar = "ONCE_SEEDBUGS_SUBJECT"

// TestSubject is what TestVerdicts runs: it ends in every way that a test can. By itself it does nothing.
func TestSubject(t *testing.T) {
	if os.Getenv(subjectVar) == "" {
		return
	}
	t.Run("passes", func(*testing.T) {})
	t.Run("fails", func(t *testing.T) { t.Error("noticed") })
	t.Run("panics", func(*testing.T) { panic("noticed") })
	t.Run("skips", func(t *testing.T) { t.Skip("no server") })
	t.Run("hangs", func(*testing.T) { select {} })
	t.Run("exits", func(*testing.T) { os.Exit(3) })
}

func TestVerdicts(t *testing.T) {
	t.Setenv(subjectVar, "1")
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &Runner{Tree: "."}
	for name, want := range map[string]Verdict{"passes": Passed, "fails": Failed, "panics": Failed, "skips": Skipped,
		"hangs": Late, "exits": Broken} {
		if r.Timeout = time.Minute; want == Late {
			r.Timeout = 100 * time.Millisecond
		}
		if got, output := r.run(t.Context(), binary, Test{".", "^TestSubject$/^" + name + "$"}); got != want {
			t.Errorf("a test that %s is taken for %v, want %v\n%s", name, got, want, output)
		}
	}
	if got, _ := r.run(t.Context(), binary, Test{".", "^TestThatIsNotThere$"}); got != Absent {
		t.Errorf("a test that is not there is taken for %v", got)
	}
	if got, _ := r.run(t.Context(), filepath.Join(t.TempDir(), "absent"), Test{".", "."}); got != Broken {
		t.Errorf("a binary that is not there is taken for %v", got)
	}
	for v := Broken; v <= Hung; v++ {
		if v.Noticed() != (v == Failed || v == Late) {
			t.Errorf("%v counts as noticed: %v", v, v.Noticed())
		}
	}
}

func TestABugIsTakenOutAgain(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.go")
	write(t, file, "if a == b {")
	b := Bug{Name: "b", File: "a.go", Old: "==", New: "!="}
	for _, fail := range []error{nil, os.ErrInvalid} {
		err := b.in(dir, func() error {
			if got := read(t, file); got != "if a != b {" {
				t.Errorf("with the bug the file is %q", got)
			}
			return fail
		})
		if err != fail || read(t, file) != "if a == b {" {
			t.Errorf("%v, and afterwards the file is %q", err, read(t, file))
		}
	}
	for _, text := range []string{"", "a == b == c"} {
		write(t, file, text)
		if err := b.in(dir, func() error { t.Error("put in"); return nil }); err == nil || b.Fits(dir) == nil {
			t.Errorf("a bug fits %q", text)
		}
	}
	if (Bug{Name: "b", File: "a.go", Old: "a ==", New: "a =="}).Fits(dir) == nil {
		t.Error("a bug that changes nothing fits")
	}
}

// A bug that does not compile, or whose test is not healthy, is never counted as noticed.
func TestWhatDoesNotCompileIsNotNoticed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module subject\n")
	write(t, filepath.Join(dir, "a.go"), "package subject\n\nvar A int = 1\n")
	t.Setenv("GOWORK", "off")
	r := &Runner{Tree: dir, Work: t.TempDir(), Timeout: time.Minute}
	result := r.Try(t.Context(), Bug{Name: "b", File: "a.go", Old: "1", New: `"1"`, Test: Test{".", "."}})
	if result.Err == nil || !strings.Contains(result.Err.Error(), "do not compile") {
		t.Errorf("%v, %v", result.Verdict, result.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx, []Bug{{Test: Test{".", "."}}}, func(Result) { t.Error("told") }); err == nil {
		t.Error("a run that was ended reports no error")
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
