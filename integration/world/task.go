package world

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/sim"
)

// Task is what the command world is asked for.
type Task struct {
	kind            Kind
	seed, seeds     uint64
	limit           time.Duration
	law             sim.Law
	first           bool
	shrink, history bool
	brief           bool // print lines that a program reads
}

// ParseTask reads the arguments of the command world.
func ParseTask(args []string) (*Task, error) {
	t, kind, law := new(Task), "", ""
	flags := flag.NewFlagSet("world", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints the error
	flags.StringVar(&kind, "kind", "small", "")
	flags.Uint64Var(&t.seed, "seed", 1, "")
	flags.Uint64Var(&t.seeds, "seeds", 1, "")
	flags.DurationVar(&t.limit, "for", 0, "")
	flags.StringVar(&law, "law", "", "")
	flags.BoolVar(&t.first, "first", false, "")
	flags.BoolVar(&t.shrink, "shrink", false, "")
	flags.BoolVar(&t.history, "history", false, "")
	flags.BoolVar(&t.brief, "brief", false, "")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("%q is no flag", flags.Arg(0))
	}
	t.law = sim.Law(law)
	if law != "" && Says(t.law) == "" {
		return nil, fmt.Errorf("no law is called %q", law)
	}
	var err error
	t.kind, err = KindOf(kind)
	return t, err
}

// tally is what was seen so far.
type tally struct {
	seeds, red, calls int
	laws              map[sim.Law]int // seeds that broke it
}

const shrinkTime = time.Minute

// Run plays the worlds, prints what it sees, and returns the exit code.
func (t *Task) Run(tt *testing.T) int {
	began, sum := time.Now(), tally{laws: make(map[sim.Law]int)}
	for seed := t.seed; seed < t.seed+t.seeds; seed++ {
		if t.limit > 0 && time.Since(began) > t.limit {
			break
		}
		if t.brief {
			fmt.Println("begins", sum.seeds+1) // which is known even if the world ends this process
		}
		s := t.kind.Settings(sim.Seed(seed))
		s.Loud = t.history
		r := Play(tt, t.kind, s)
		sum.seeds++
		sum.calls += r.Calls
		if t.history {
			fmt.Print(sim.Print(r.History))
		}
		if len(t.broken(r)) == 0 {
			continue
		}
		sum.red++
		if t.brief {
			fmt.Printf("seeds %d law %s\n", sum.seeds, strings.Join(t.names(r), ","))
			if t.first {
				return 1
			}
			continue
		}
		t.report(tt, seed, s, r, &sum)
		if t.first {
			break
		}
	}
	if t.brief {
		fmt.Printf("seeds %d\n", sum.seeds)
		return sum.exit()
	}
	took := time.Since(began)
	fmt.Printf("%s: %d seeds, %d of them red, %d calls over boundaries, %.0f a second, %v\n",
		t.kind.Name, sum.seeds, sum.red, sum.calls, float64(sum.calls)/took.Seconds(), took.Round(time.Millisecond))
	for _, law := range Laws() {
		if n := sum.laws[law]; n > 0 {
			fmt.Printf("    %s is broken in %d\n", law, n)
		}
	}
	return sum.exit()
}

func (s *tally) exit() int {
	if s.red > 0 {
		return 1
	}
	return 0
}

// broken returns the broken laws that are looked for.
func (t *Task) broken(r *sim.Result) (all []sim.Break) {
	for _, b := range r.Broken {
		if t.law == "" || b.Law == t.law {
			all = append(all, b)
		}
	}
	return all
}

// names returns the names of the broken laws that are looked for, in the order in
// which they broke.
func (t *Task) names(r *sim.Result) (all []string) {
	for _, b := range t.broken(r) {
		if !slices.Contains(all, string(b.Law)) {
			all = append(all, string(b.Law))
		}
	}
	return all
}

const breaksShown = 3 // of one seed

func (t *Task) report(tt *testing.T, seed uint64, s sim.Settings, r *sim.Result, sum *tally) {
	for _, law := range r.Laws() {
		sum.laws[law]++
	}
	broken := t.broken(r)
	for i, b := range broken {
		if i == breaksShown {
			fmt.Printf("seed %d: and %d more\n", seed, len(broken)-i)
			break
		}
		fmt.Printf("seed %d: %.300s\n", seed, b)
	}
	if t.shrink {
		r.Broken = broken
		fmt.Print(Shrink(tt, t.kind, s, r, shrinkTime))
		t.shrink = false
	}
}
