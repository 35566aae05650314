//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/effectively-once/once/internal/testenv"
)

// tree is a workspace with packages that end in every way.
var tree = map[string]string{
	"go.work": "go 1.24\n\nuse .\n",
	"go.mod":  "module example.test/tree\n\ngo 1.24\n",
	"good/good_test.go": `package good
import "testing"
func TestGood(t *testing.T) { t.Log("nobody reads this") }
func TestSkipped(t *testing.T) { t.Skip("needs a frobnicator") }
func TestSome(t *testing.T) {
	t.Run("one", func(*testing.T) {})
	t.Run("two", func(t *testing.T) { t.Skip("needs a frobnicator") })
}`,
	"bad/bad_test.go": `package bad
import "testing"
func TestBad(t *testing.T) {
	t.Run("fine/with a slash in its name", func(*testing.T) {})
	t.Run("it's wrong", func(t *testing.T) { t.Error("two and two are five") })
}`,
	"panics/panics_test.go": `package panics
import "testing"
func TestPanics(t *testing.T) { panic("out of cheese") }`,
	"killed/killed_test.go": `package killed
import ("os"; "syscall"; "testing")
func TestKilled(t *testing.T) { t.Log(os.MkdirTemp("", "")); _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }`,
	"broken/broken_test.go": `package broken
var _ int = "text"`,
	"code/code.go": `package code
var _ = missing`,
	"files/files_test.go": `package files
import ("os"; "testing")
func TestFiles(t *testing.T) { if _, err := os.MkdirTemp("", "litter"); err != nil { t.Fatal(err) } }`,
	"processes/processes_test.go": `package processes
import ("os/exec"; "testing")
func TestProcesses(t *testing.T) { if err := exec.Command("sh", "-c", "sleep 1234567 & exit").Run(); err != nil { t.Fatal(err) } }`,
	// These fail the first time.
	"flaky/flaky_test.go": `package flaky
import ("os"; "testing")
func TestFlaky(t *testing.T) {
	ran := 0
	t.Run("fine", func(t *testing.T) { ran++ })
	t.Run("unlucky", func(t *testing.T) { ran++; if os.Mkdir("ran", 0o755) == nil { t.Error("bad luck") } })
	if ran < 2 { t.Error("it has counted what ran alone") }
}`,
	"hidden/hidden_test.go": `package hidden
import ("os"; "testing")
func TestHidden(t *testing.T) {
	t.Run("unlucky", func(t *testing.T) { if os.Mkdir("ran", 0o755) == nil { t.Error("bad luck") } })
	if !t.Failed() { t.Error("always wrong") }
}`,
	"dies/dies_test.go": `package dies
import ("os"; "testing")
func TestDies(t *testing.T) { if os.Mkdir("ran", 0o755) == nil { panic("out of luck") } }
func TestAfterwards(t *testing.T) { if os.Mkdir("ran too", 0o755) == nil { t.Error("late luck") } }`,
	"apart/go.mod": "module example.test/apart\n\ngo 1.24\n",
	"apart/apart_test.go": `package apart
import "testing"
func TestApart(t *testing.T) { t.Error("far away") }`,
	"hangs/hangs_test.go": `package hangs
import ("os"; "os/exec"; "testing")
func TestHangs(t *testing.T) {
	name := os.Getenv("HANGS")
	if name == "" { t.Skip("nobody asks for it") }
	if err := exec.Command("sh", "-c", "echo $$ >"+name+"; exec sleep 1234567").Run(); err != nil { t.Fatal(err) }
}`,
}

// suite returns the program, ready to run in its own workspace and temporary
// directory.
func suite(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	root, temp := t.TempDir(), t.TempDir()
	for name, text := range tree {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(temp)
		if err != nil || len(left) > 0 {
			t.Errorf("left in the temporary directory: %v, %v", left, err)
		}
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self, args...)
	cmd.Dir = root
	// The servers tool may be our parent. Without its variables the output does
	// not depend on it.
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "ONCE_TEST_") })
	cmd.Env = append(own, append(env, mainVar+"=1", "TMPDIR="+temp, "GOTMPDIR=", "GOFLAGS=", "GOWORK=")...)
	out = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// mainVar turns this test program into the suite.
const mainVar = "ONCE_SUITE_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVar) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestEverythingRunsAndIsSummedUp(t *testing.T) {
	cmd, out := suite(t, nil)
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("it ended with %v", err)
	}
	said := out.String()
	for _, want := range []string{
		`(?m)^bad: TestBad/it's_wrong failed after .*\n.*bad_test.go:5: two and two are five\n  run just this again:\n    go test -race -count=1 -run '\^TestBad\$/\^it'\\''s_wrong\$' ./bad$`,
		`(?m)^panics: TestPanics failed after `, `panic: out of cheese`,
		`(?m)^killed: TestKilled was running when its program ended$`, `ended with signal: killed`,
		`(?m)^broken does not compile\n.*\n.*cannot use "text"`,
		`(?m)^code does not compile\n.*\n.*undefined: missing`,
		`(?m)^files: outside its tests\n(.*\n)*?.*FAIL: the tests have left behind: \$TMPDIR/litter\d+$`,
		`(?m)^processes: outside its tests\n(.*\n)*?.*FAIL: the tests have left behind: process \d+ \(sleep 1234567\)$`,
		`(?m)^apart: TestApart failed after (.*\n)*?.*\(cd apart && GOWORK=off go test -count=1 -run '\^TestApart\$' \.\)$`,
		`(?m)^    2  needs a frobnicator: good TestSkipped, good TestSome/two$`,
		`(?m)^    1  nobody asks for it: hangs TestHangs$`,
		`(?m)again           bad TestBad/it's_wrong: failed alone, too \(2 of 2\)$`,
		`(?m)^flaky TestFlaky/unlucky\n.*bad luck\n  run just this again:\n    go test -race -count=1 -run '\^TestFlaky\$/\^unlucky\$' ./flaky$`,
		`(?m)^dies\n(.*\n)*?.*panic: out of luck(.*\n)*?  run just this again:\n    go test -race -count=1 ./dies$`,
		`(?m)^9 of 13 packages failed in .*: `,
		`(?m)^2 flaky: dies, flaky TestFlaky/unlucky$`,
		// Passed: Good, Some/one, Bad/fine, Files, Processes, Flaky/fine,
		// Flaky/unlucky, Dies, Afterwards. A package that does not compile, or
		// that leaves something, counts as one failed test.
		`\n9 passed, 9 failed, 3 skipped\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(said) {
			t.Errorf("nothing matches %s", want)
		}
	}
	if strings.Contains(said, "TestBad/fine was running") {
		t.Error("a part of the name of a test is taken for a test")
	}
	if strings.Contains(said, "nobody reads this") {
		t.Error("what a test said that passed is shown")
	}
	if t.Failed() {
		t.Log(said)
	}
}

func TestAllPassed(t *testing.T) {
	cmd, out := suite(t, nil, "-check", "./good")
	if err := cmd.Run(); err != nil || !strings.HasSuffix(out.String(), "\n2 passed, 0 failed, 2 skipped\n") ||
		strings.Contains(out.String(), "Failed") {
		t.Errorf("%v: %s", err, out)
	}
}

// A run whose failures were bad luck has passed, unless it is strict.
func TestBadLuckIsForgiven(t *testing.T) {
	for _, test := range []struct {
		flaky string
		code  int
		want  string
	}{
		{"2", 0, "\n2 flaky: flaky TestFlaky/unlucky, dies\n4 passed, 0 failed, 0 skipped\n"},
		{"1", exitFailed, "\n1 flaky: flaky TestFlaky/unlucky\n2 passed, 1 failed, 0 skipped\n"}, // dies for two reasons
		{"0", exitFailed, "\n1 passed, 2 failed, 0 skipped\n"},
	} {
		t.Run(test.flaky, func(t *testing.T) {
			cmd, out := suite(t, nil, "-norace", "-flaky", test.flaky, "./flaky", "./dies")
			if _ = cmd.Run(); cmd.ProcessState.ExitCode() != test.code || !strings.HasSuffix(out.String(), test.want) {
				t.Errorf("it ended with %v: %s", cmd.ProcessState, out)
			}
		})
	}
}

// A test that fails above the one that is repeated may have looked at nothing the
// first time. It is no bad luck unless it passes whole.
func TestATestAboveIsNotForgivenWithItsSubtest(t *testing.T) {
	cmd, out := suite(t, nil, "-norace", "./hidden")
	if _ = cmd.Run(); cmd.ProcessState.ExitCode() != exitFailed || strings.Contains(out.String(), "flaky:") {
		t.Errorf("it ended with %v: %s", cmd.ProcessState, out)
	}
}

// So many failures at once are no bad luck.
func TestManyFailuresAreNotRepeated(t *testing.T) {
	l := newLedger([]*batch{{packages: []pkg{{path: "p", name: "p"}}}})
	for i := range maxAgain + 1 {
		l.add(event{Action: "fail", Package: "p", Test: "Test" + strconv.Itoa(i)})
	}
	l.add(event{Action: "output", Package: "p", Output: "FAIL\n"})
	l.add(event{Action: "fail", Package: "p"})
	var said string
	(&options{flaky: 2}).runAgain(t.Context(), l, nil, func(format string, args ...any) { said += fmt.Sprintf(format, args...) })
	if !l.failed() || !strings.Contains(said, "none of the 21 failures is repeated") {
		t.Errorf("failed %v, said %q", l.failed(), said)
	}
}

func TestAnInterruptLeavesNothing(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "pid")
			cmd, out := suite(t, []string{"HANGS=" + name}, "./hangs", "./bad")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pid := awaitPid(t, name)
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitInterrupted {
				t.Errorf("it ended with %v", err)
			}
			if lives(pid) {
				t.Errorf("process %d lives on", pid)
			}
			if !strings.Contains(out.String(), "\nInterrupted: ") {
				t.Errorf("it said %s", out)
			}
		})
	}
}

func TestAKilledRunIsSweptByTheNext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pid")
	cmd, _ := suite(t, []string{"HANGS=" + name}, "./hangs")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := awaitPid(t, name)
	all := descendants(cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	for _, one := range append(all, pid) {
		testenv.Await(t, "process "+strconv.Itoa(one)+" ends", func() bool { return !lives(one) })
	}
	var temp string
	for _, v := range cmd.Env {
		if rest, ok := strings.CutPrefix(v, "TMPDIR="); ok {
			temp = rest
		}
	}
	if err := sweepRooms(temp); err != nil {
		t.Error(err)
	}
}

// lives returns false for a zombie.
func lives(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.HasPrefix(string(text[strings.LastIndexByte(string(text), ')'):]), ") Z")
}

func awaitPid(t *testing.T, name string) (pid int) {
	t.Helper()
	testenv.Await(t, "a test runs", func() bool {
		text, _ := os.ReadFile(name)
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		pid = n
		return err == nil
	})
	return pid
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"-flaky", "-1"}, {"-load", "-1"}, {"-p", "0"}, {"-wrong"}, {"-timeout", "-1s"}} {
		cmd, out := suite(t, nil, args...)
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(out.String(), "usage: suite") {
			t.Errorf("%q: %v, %s", args, cmd.ProcessState, out)
		}
	}
}

func TestTheLoadEndsWithTheRun(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pid")
	cmd, _ := suite(t, []string{"HANGS=" + name}, "-load", "2", "./hangs")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitPid(t, name)
	burner := 0
	for _, pid := range descendants(cmd.Process.Pid) {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if strings.Contains(string(text), burnerVerb) {
			burner = pid
		}
	}
	if burner == 0 {
		t.Error("nothing burns")
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // interrupted
	if lives(burner) {
		t.Error("the load goes on")
	}
}

// The list of long packages names only existing ones.
func TestLongPackagesExist(t *testing.T) {
	for _, name := range longFirst {
		if found, err := filepath.Glob(filepath.Join("../../..", name, "*_test.go")); err != nil || len(found) == 0 {
			t.Errorf("%s has no tests: %v", name, err)
		}
	}
}

// The packages without race detection exist.
func TestTranslatedPackagesExist(t *testing.T) {
	if out, err := goOutput(t.Context(), "../..", nil, append([]string{"list", "-f", "{{.ImportPath}}"}, translated...)...); err != nil ||
		!slices.Equal(strings.Fields(out), translated) {
		t.Errorf("found %q, %v", out, err)
	}
}
