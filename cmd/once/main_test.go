package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/demo"
)

// The command, and the same command with a protected side that is broken on purpose.
func TestMain(m *testing.M) {
	protect := func(h demo.Handler) func() {
		return func() {
			handlers := demo.Handlers()
			handlers[demo.With] = h
			os.Exit(run(os.Args[1:], handlers))
		}
	}
	testscript.Main(m, map[string]func(){
		"once":           main,
		"seed":           seed,
		"sql":            runSQL,
		"once-repeating": protect(demo.HandleByHand),
		"once-losing":    protect(func(context.Context, *demo.Shop, demo.Order) error { return nil }),
		"once-refusing": protect(func(context.Context, *demo.Shop, demo.Order) error {
			return once.Permanent(errors.New("no funds"))
		}),
		"once-panicking": protect(func(context.Context, *demo.Shop, demo.Order) error { panic("at the disco") }),
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", RequireExplicitExec: true, Setup: func(e *testscript.Env) error {
		return at(e, "sqlite:"+filepath.ToSlash(e.WorkDir)+"/shop.db")
	}})
}

// at sets a script up to work on a database. With the race detector, a process sleeps for a second at its end otherwise.
func at(e *testscript.Env, database string) error {
	e.Setenv("DATABASE", database)
	e.Setenv("GORACE", "atexit_sleep_ms=0")
	return nil
}

const testTime = 2 * time.Minute

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
	cmd, temp := command(t, "once", "demo", "--json", "--orders", "50")
	output, err := cmd.Output()
	wantExit(t, err, exitOK)
	r := report(t, output)
	if r.With.Effects != 50 || !r.Right() {
		t.Errorf("the protected side is wrong: %+v", r.With)
	}
	if r.Without.Duplicated == 0 || r.Without.OverchargedCents == 0 {
		t.Errorf("the other side is right: %+v", r.Without)
	}
	for name, side := range map[string]demo.Side{"without": r.Without, "with": r.With} {
		if side.Crashes != r.Crashes || side.Deliveries < r.Deliveries {
			t.Errorf("%s: %d deliveries and %d crashes, want at least %d and exactly %d",
				name, side.Deliveries, side.Crashes, r.Deliveries, r.Crashes)
		}
	}
	wantEmpty(t, temp)
}

// manyOrders are so many that the handler by hand doubles one: with 25, every kill may hit a moment that it survives.
const manyOrders = "120"

func TestProtectedSideWrong(t *testing.T) {
	for _, test := range []struct {
		command, orders string
		wrong           func(demo.Side) bool
	}{
		{"once-repeating", manyOrders, func(s demo.Side) bool { return s.Duplicated > 0 && s.Lost == 0 }},
		{"once-losing", "25", func(s demo.Side) bool { return s.Lost == 25 && s.Effects == 0 }},
	} {
		t.Run(test.command, func(t *testing.T) {
			cmd, temp := command(t, test.command, "demo", "--json", "--orders", test.orders)
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
	cmd, _ := command(t, "once-repeating", "demo", "--orders", manyOrders)
	output, err := cmd.Output()
	wantExit(t, err, exitNo)
	if _, verdict, _ := strings.Cut(string(output), "\nWith once: "); !strings.Contains(verdict, " too many") {
		t.Errorf("the verdict hides the duplicates: %s", output)
	}
}

func TestCannotRun(t *testing.T) {
	for name, want := range map[string]string{
		"once-refusing":  "no funds",
		"once-panicking": "a worker ended",
	} {
		t.Run(name, func(t *testing.T) {
			cmd, temp := command(t, name, "demo", "--json", "--orders", "25")
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
