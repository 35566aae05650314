package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

// The command, and the same command with a protected side that is broken on purpose.
func TestMain(m *testing.M) {
	protect := func(open func(*demo.Shop) demo.Service) func() {
		return func() {
			services := demo.Services()
			services[demo.With] = open
			os.Exit(run(os.Args[1:], services))
		}
	}
	answer := func(status int, text string) func(*demo.Shop) demo.Service {
		return func(*demo.Shop) demo.Service {
			return demo.Service{Place: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, status) })}
		}
	}
	testscript.Main(tidy{m}, map[string]func(){
		"once":           main,
		"seed":           seed,
		"sql":            runSQL,
		"proved-shop":    provedShop,
		"proved-count":   provedCount,
		"once-repeating": protect(demo.ByHand),
		"once-losing":    protect(answer(http.StatusOK, "")),
		"once-refusing":  protect(answer(http.StatusPaymentRequired, "no funds")),
		"once-panicking": protect(func(*demo.Shop) demo.Service {
			return demo.Service{Run: []func(context.Context) error{func(context.Context) error { panic("at the disco") }}}
		}),
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, Setup: func(e *testscript.Env) error {
		switch strings.TrimPrefix(filepath.Base(e.WorkDir), "script-") {
		case "demo", "democonsole", "terminal", "intro", "keep":
			dir, err := plainDir()
			if err != nil {
				return err
			}
			e.Setenv("PATH", dir+string(os.PathListSeparator)+e.Getenv("PATH"))
		}
		return at(e, "sqlite:"+filepath.ToSlash(e.WorkDir)+"/shop.db")
	}})
}

// at sets a script up to work on a database. With the race detector, a process sleeps for a second at its end otherwise.
func at(e *testscript.Env, database string) error {
	e.Setenv("DATABASE", database)
	e.Setenv("GORACE", "atexit_sleep_ms=0")
	answering(e)
	return nil
}

// testTime ends what hangs, on a machine that does much else.
const testTime = 10 * time.Minute

// command runs one of the commands of TestMain, with a temporary directory of its own.
func command(t *testing.T, name string, args ...string) (cmd *exec.Cmd, temp string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	temp = t.TempDir()
	cmd = exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	return cmd, temp
}

func report(t *testing.T, output []byte) (r demo.Report) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(output))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%v in %q", err, output)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Fatalf("more than one object in %q", output)
	}
	return r
}

func wantExit(t *testing.T, err error, want int) {
	t.Helper()
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("exit code %d, want %d", got, want)
	}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestSidesGetTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("demos take long: run it without -short")
	}
	cmd, temp := command(t, plainCommand(t), "demo", "--json", "--orders", "30")
	output, err := cmd.Output()
	wantExit(t, err, exitOK)
	r := report(t, output)
	if r.With.Effects != 30 || !r.Right() {
		t.Errorf("the protected side is wrong: %+v", r.With)
	}
	if r.Without.Duplicated == 0 || r.Without.OverchargedCents == 0 || r.Without.Lost == 0 {
		t.Errorf("the other side is right: %+v", r.Without)
	}
	for name, side := range map[string]demo.Side{"without": r.Without, "with": r.With} {
		if side.Orders != 30 || side.Answered != 30 || side.Crashes == 0 || side.Outages != r.With.Outages || side.Deliveries < side.Effects {
			t.Errorf("%s: %+v", name, side)
		}
	}
	if len(r.Windows) != len(demo.Windows)+1 {
		t.Errorf("%d windows, want each, and everything: %+v", len(r.Windows), r.Windows)
	}
	wantEmpty(t, temp)
}

// What the scenarios say of the two sides is so. Where a race decides, the side by hand may be lucky.
func TestScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("demos take long: run it without -short")
	}
	for _, w := range demo.Windows {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			cmd, temp := command(t, plainCommand(t), "demo", "--json", "--scenario", w.Name, "--orders", "3")
			output, err := cmd.Output()
			wantExit(t, err, exitOK)
			r := report(t, output)
			if len(r.Windows) != 1 || r.Windows[0].Scenario != w.Name || r.Windows[0].With.Orders != 3 {
				t.Fatalf("the windows are %+v", r.Windows)
			}
			by := r.Windows[0].Without
			switch w.Name {
			case "crash-before-publish", "outage":
				if by.Lost != 3 {
					t.Errorf("by hand: %+v, want all lost", by)
				}
			case "double-click":
				if by.Doubled != 3 || r.Without.DuplicateOrders != 3 {
					t.Errorf("by hand: %+v, want all doubled", by)
				}
			case "crash-after-charge", "crash-after-letter":
				if by.Doubled == 0 {
					t.Errorf("by hand: %+v, want some doubled", by)
				}
			}
			if parked := r.With.Parked; w.Name == "crash-after-letter" && parked == 0 {
				t.Error("no letter is parked")
			}
			wantEmpty(t, temp)
		})
	}
}

func TestProtectedSideWrong(t *testing.T) {
	for _, test := range []struct {
		command string
		wrong   func(demo.Side) bool
	}{
		{"once-repeating", func(s demo.Side) bool { return s.Duplicated > 0 && s.Lost == 0 }},
		{"once-losing", func(s demo.Side) bool { return s.Lost == 3 && s.Effects == 0 }},
	} {
		t.Run(test.command, func(t *testing.T) {
			cmd, temp := command(t, test.command, "demo", "--json", "--scenario", "crash-after-charge", "--orders", "3")
			output, err := cmd.Output()
			wantExit(t, err, exitNo)
			if r := report(t, output); !test.wrong(r.With) || r.Right() {
				t.Errorf("not found to be wrong: %+v", r.With)
			}
			wantEmpty(t, temp)
		})
	}
}

func TestVerdictIsWrongInWords(t *testing.T) {
	cmd, _ := command(t, "once-repeating", "demo", "--scenario", "crash-after-charge", "--orders", "3")
	output, err := cmd.Output()
	wantExit(t, err, exitNo)
	if _, verdict, _ := strings.Cut(string(output), "\nWith once: "); !strings.Contains(verdict, " too many") {
		t.Errorf("the verdict hides the duplicates: %s", output)
	}
}

func TestCannotRun(t *testing.T) {
	for name, want := range map[string]string{
		"once-refusing":  "no funds",
		"once-panicking": "see its output above", // before or after it served
	} {
		t.Run(name, func(t *testing.T) {
			cmd, temp := command(t, name, "demo", "--json", "--orders", "3")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			output, err := cmd.Output()
			wantExit(t, err, exitFailed)
			if len(output) > 0 || !strings.Contains(stderr.String(), "once: with: ") || !strings.Contains(stderr.String(), want) {
				t.Errorf("stdout %q, stderr %q, want %q", output, stderr.String(), want)
			}
			wantEmpty(t, temp)
		})
	}
	t.Run("no directory", func(t *testing.T) {
		cmd, temp := command(t, "once", "demo", "--json")
		cmd.Env = append(cmd.Env, "TMPDIR="+filepath.Join(temp, "missing"))
		_, err := cmd.Output()
		wantExit(t, err, exitFailed)
	})
}
