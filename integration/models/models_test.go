//go:build linux

package models

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
)

// run is one search of all states of a model.
type run struct {
	model   string
	defines string // macros, separated by spaces
	law     string // that a wrong variant breaks; empty: the model is right
	large   bool   // only in a soak
	prints  bool   // the steps that it makes
}

// drains is the law that everything ends. The model of a key has no assertion for
// it: a search finds a process that waits for ever.
const drains = "DRAINS"

var runs = []run{
	{model: "key", defines: "FAULTS=1"},
	{model: "key", defines: "FAULTS=1 W=2"}, // more than SettleTime
	{model: "key", defines: "FAULTS=1 RECONCILER TWO_PEOPLE", large: true},
	{model: "key", defines: "FAULTS=1 NO_FENCE", law: "STALE"},
	{model: "key", defines: "FAULTS=1 NO_FENCE", law: "ANSWER"},
	{model: "key", defines: "FAULTS=1 NO_TOKEN", law: "STALE"},
	{model: "key", defines: "FAULTS=1 LAPSES_AT_THE_LATEST_TIME", law: "LEASE"},
	{model: "key", defines: "FAULTS=1 FORGETS_AT_THE_LATEST_TIME", law: "FORGOTTEN"},
	{model: "key", defines: "FAULTS=1 SETTLES_AT_THE_EARLIEST_TIME", law: "EFFECT"},
	{model: "key", defines: "FAULTS=1 EXTENDS_A_LAPSED_LEASE", law: "EFFECT"},
	{model: "key", defines: "FAULTS=1 W=2 EXTENDS_WHAT_MAY_BE_OVER", law: "EFFECT"},
	{model: "key", defines: "FAULTS=1 NO_SETTLE_TIME", law: "EFFECT"},
	{model: "key", defines: "FAULTS=1 KEY_VALID_TO_THE_END", law: "EFFECT"},
	{model: "key", defines: "FAULTS=2 KIND=KEYED NOBODY NOT_DONE_FREES", law: "EFFECT"},
	{model: "key", defines: "FAULTS=1 ROWS_APART", law: "ROWS"},
	{model: "key", defines: "FAULTS=1 KIND=PARK TELLS_EVERYBODY", law: "DECISION"},
	{model: "key", defines: "FAULTS=1 WAITS_FOR_THE_HOLDER", law: drains},

	{model: "lanes", defines: "FAULTS=1"},
	{model: "lanes", defines: "FAULTS=1 PARKS=0 PRESENCE"},
	{model: "lanes", defines: "FAULTS=2 PARKS=0"},
	{model: "lanes", defines: "FAULTS=1 PRESENCE", large: true},
	{model: "lanes", defines: "FAULTS=2 PARKS=0 NO_FENCE", law: "ORDER"},
	{model: "lanes", defines: "FAULTS=3 PARKS=0 NO_TERM", law: "ORDER"},
	{model: "lanes", defines: "FAULTS=1 SKIPS_WITHOUT_ORDER", law: "ORDER"},
	{model: "lanes", defines: "FAULTS=1 LOOKS_BEFORE_IT_READS", law: "ORDER"},
	{model: "lanes", defines: "FAULTS=1 RETRIES_AFTER_ONE_READ", law: "ORDER"},
	{model: "lanes", defines: "FAULTS=1 RETRIES_BESIDE_PENDING", law: "ORDER"},
	{model: "lanes", defines: "FAULTS=1 FORGETS_WHAT_IS_STUCK", law: "PARK"},
	{model: "lanes", defines: "FAULTS=1 LEASE_FROM_THE_REPLY", law: "OWNER"},
	{model: "lanes", defines: "FAULTS=1 PRESENCE ONE_LOOK", law: "OWNER"},
	{model: "lanes", defines: "FAULTS=1 ENDS_WHAT_WAS_REJECTED", law: "LOST"},
	{model: "lanes", defines: "FAULTS=1 WAKES_FOR_WHAT_IS_PENDING", law: drains},

	{model: "positions", defines: "FAULTS=2"},
	{model: "positions", defines: "FAULTS=2 SETS_BACK"},
	{model: "positions", defines: "FAULTS=3 SETS_BACK", large: true},
	{model: "positions", defines: "FAULTS=1 NO_EPOCH", law: "EPOCH"},
	{model: "positions", defines: "FAULTS=2 NO_EPOCH", law: "ORDER"},
	{model: "positions", defines: "FAULTS=1 EFFECTS_APART", law: "ONCE"},
	{model: "positions", defines: "FAULTS=1 PASSES_WITHOUT_THE_SHELF", law: "SKIPPED"},
	{model: "positions", defines: "FAULTS=2 FORGETS_THE_SHELF", law: "ORDER"},
	{model: "positions", defines: "FAULTS=1 KEEPS_WHAT_WAS_RECEIVED", law: "SKIPPED"},
	{model: "positions", defines: "FAULTS=2 STOPS_WHEN_OVERTAKEN", law: drains},
}

func (r run) String() string {
	name := r.model + " " + r.defines
	if r.law != "" {
		name += " breaks " + r.law
	}
	return name
}

// flags returns the macros for the preprocessor. In a wrong variant only one law is
// active, so it fails for that reason or not at all.
func (r run) flags() (flags []string) {
	for _, d := range strings.Fields(r.defines) {
		flags = append(flags, "-D"+d)
	}
	if r.law != "" {
		flags = append(flags, "-DLAW="+r.law)
	}
	return flags
}

const invalidEnd = "invalid end state"

// violation returns what Spin reports about a wrong variant.
func (r run) violation() string {
	if r.model == "key" && r.law == drains {
		return invalidEnd
	}
	return "assertion violated"
}

// searchTime limits one search, on a busy machine as well.
const searchTime = 20 * time.Minute

// TestModels searches every state of the models: the right ones keep all laws, and
// each wrong one breaks the law that its guard is for.
func TestModels(t *testing.T) {
	testenv.Spin(t)
	var states int
	var used time.Duration
	for _, r := range runs {
		if r.large && proof.Soaking(t) == 0 {
			continue
		}
		t.Run(r.String(), func(t *testing.T) {
			got := r.search(t)
			states, used = states+got.states, used+got.used
			t.Logf("%9d states, %5.1f s: %s", got.states, got.used.Seconds(), cmp.Or(got.broken, "all laws hold"))
			if r.law == "" && got.broken != "" {
				t.Errorf("the model is wrong: %s\n%s", got.broken, got.story)
			}
			if r.law != "" && !strings.HasPrefix(got.broken, r.violation()) {
				t.Errorf("the wrong variant %s does not break %s: %s", r.defines, r.law, cmp.Or(got.broken, "all laws hold"))
			}
		})
	}
	t.Logf("%d states, %.1f s of one core", states, used.Seconds())
}

// result is what a search found.
type result struct {
	states int
	used   time.Duration // of one core, with the compiler's
	broken string        // the first violation, as Spin reports it
	story  string        // the steps that lead there
	steps  []string      // that were printed, each once
}

var (
	statesStored = regexp.MustCompile(`(?m)^\s*(\d+) states, stored`)
	firstError   = regexp.MustCompile(`(?m)^pan:\d+: (.*) \(at depth \d+\)$`)
)

func (r run) search(t *testing.T) (got result) {
	t.Helper()
	model, err := filepath.Abs(r.model + ".pml")
	proof.Must(t, err)
	dir := t.TempDir()
	call := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		got.used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		return string(out)
	}
	generate := []string{"-a"}
	if r.prints {
		generate = append(generate, "-o2") // else what is only printed is not part of a state
	}
	call("spin", append(append(generate, r.flags()...), model)...)
	// Every state is kept, in a compressed form: nothing is hashed away.
	optimize := "-O0" // compiling takes longer than most searches
	if r.large {
		optimize = "-O1"
	}
	compiler := []string{optimize, "-w", "-DSAFETY", "-DCOLLAPSE", "-DMEMLIM=2000", "-o", "pan", "pan.c"}
	search := []string{"-m200000"}
	if r.prints {
		compiler = append(compiler, "-DPRINTF")
		search = append(search, "-E")
	}
	call("gcc", compiler...)
	if r.violation() != invalidEnd && (r.model != "key" || r.law != "") { // an assertion says what must hold at the end
		search = append(search, "-E")
	}
	out := call("timeout", append([]string{fmt.Sprint(int(searchTime.Seconds())), "./pan"}, search...)...)
	if r.prints {
		got.steps = stepsIn(out)
	}
	if found := statesStored.FindStringSubmatch(out); found != nil {
		_, err = fmt.Sscan(found[1], &got.states)
		proof.Must(t, err)
	}
	if found := firstError.FindStringSubmatch(out); found != nil {
		got.broken = found[1]
		if r.law == "" {
			proof.Must(t, os.Symlink(model, filepath.Join(dir, filepath.Base(model))))
			got.story = call("spin", append(append([]string{"-t", "-p"}, r.flags()...), filepath.Base(model))...)
		}
		return got
	}
	if !strings.Contains(out, "errors: 0") || strings.Contains(out, "not completed") ||
		strings.Contains(out, "too small") {
		t.Fatalf("the search is not complete:\n%s", out)
	}
	return got
}
