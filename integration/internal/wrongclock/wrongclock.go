// Package wrongclock builds tests whose wall clock is wrong.
//
// Go reads the clock in the process itself, so a preloaded library cannot
// change it. A test builds another, or itself again, with a time.Now that is an
// hour fast, an hour slow, or runs backwards, for all code in that process,
// including drivers. Only the monotonic clock, which measures durations, stays right, as on
// a machine whose clock is set.
package wrongclock

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Var is the environment variable that says how wrong the clock is: one of Ways,
// or empty.
const Var = "ONCE_CLOCK"

// ServerVar is the environment variable that tells the program where the server is.
const ServerVar = "ONCE_CLOCK_SERVER"

// Ways are how a clock can be wrong.
var Ways = []string{"ahead", "behind", "backwards"}

// wrong has what is added to the seconds of the wall clock.
const wrong = `
func wrong(mono int64) int64 {
	switch how, _ := syscall.Getenv("` + Var + `"); how {
	case "ahead":
		return 3600
	case "behind":
		return -3600
	case "backwards":
		return -10 * ((mono - startNano) / 1_000_000_000)
	default:
		return 0
	}
}
`

// Build builds the tests of a package as a program in a folder, with a time.Now
// that is wrong. All that they import is compiled again.
func Build(ctx context.Context, dir, pkg string) (program string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	text := string(source)
	for _, change := range [][2]string{
		{"import (\n", "import (\n\t\"syscall\"\n"},
		{"func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n\tsec += wrong(mono)\n"},
	} {
		if strings.Count(text, change[0]) != 1 {
			return "", fmt.Errorf("%s of this Go release is unlike the ones before: look for another place to make its clock wrong", original)
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	changed, list := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	for name, content := range map[string][]byte{changed: []byte(text + wrong), list: overlay} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			return "", err
		}
	}
	program = filepath.Join(dir, "wrongclock.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay="+list, "-o", program, pkg).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build a program with a wrong clock: %v\n%s", err, out)
	}
	return program, nil
}

// Check checks that the clock of this process is wrong as intended: it showed
// before a while ago, and truth is the time now.
func Check(t *testing.T, before, truth time.Time) {
	t.Helper()
	off := time.Until(truth)
	switch how := os.Getenv(Var); {
	case how == "ahead" && (off > -59*time.Minute || off < -61*time.Minute),
		how == "behind" && (off < 59*time.Minute || off > 61*time.Minute),
		how == "backwards" && !time.Now().Round(0).Before(before):
		t.Fatalf("the clock is meant to be %s, and is %v off", how, off)
	}
}
