package oncetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// Case describes a service to prove. Setup, Run, Probe and Messages are
// required. The zero values of the other fields are valid.
type Case[W any] struct {
	// Setup makes an empty world: the store, its tables, and doubles of the
	// systems that the service calls. It is called for each schedule, and cleans
	// up with t.Cleanup.
	Setup func(t testing.TB) W

	// Run runs the service: it consumes the messages of p.Source() until ctx ends,
	// and then returns. It accesses everything in the world through p. Two
	// processes may run at once, and a new one follows one that crashed, so
	// variables of the world stand for what survives a crash.
	Run func(ctx context.Context, p *Process, w W) error

	// Probe describes everything that a customer could notice, one line each:
	// "order 7: charged 49.99". The lines always come in the same order, and
	// contain no times or random IDs. Probe may be called while the service runs.
	Probe func(ctx context.Context, w W) (string, error)

	// Messages are the messages to deliver: a few that matter, with different IDs.
	Messages []*broker.Message

	// Work returns the unit of work that a message stands for in business terms.
	// Messages with the same one mean the same. If it is set, one schedule sends
	// them again with other IDs. Default: the ID.
	Work func(*broker.Message) string

	// Forget makes the service forget keys whose retention is over. If it is set,
	// one schedule then delivers all messages again: the state must stay the same,
	// for example because the messages are parked.
	Forget func(ctx context.Context, w W) error

	// Accept reports whether a state that differs from the reference is also
	// right, for example because work whose outcome a crash left unknown is
	// parked. Default: none is.
	Accept func(reference, state string) bool

	Deadline time.Duration // the time limit of each schedule; default 10 seconds
	Quiet    time.Duration // how long a state must stay unchanged to count as final; default 50 milliseconds

	// Crashes limits how many crashes at steps are tried. If there are more steps,
	// Seed selects them. Default: 200.
	Crashes int

	// Seed is the seed of all random choices. Default: 1. The environment variable
	// ONCETEST_SEED overrides it.
	Seed uint64
}

// Prove delivers the messages once, in order and undisturbed, to learn the
// right state, and then again in an empty world under each schedule. It reports
// an error if a state differs, a message is never settled, or Run ends. If t is
// a *testing.T, each schedule is a subtest, so it can be run alone.
func Prove[W any](t testing.TB, c Case[W]) {
	t.Helper()
	pr, err := c.prover()
	if err != nil {
		t.Fatalf("oncetest: %v", err)
	}
	ref, undisturbed, err := pr.reference(t)
	if err != nil {
		s := schedule{name: "reference", window: "each message was delivered once, and nothing else happened"}
		t.Fatalf("oncetest: %s", pr.explain(err, s, undisturbed, ref))
	}
	list := pr.schedules(ref)
	for i, s := range list {
		if pr.findings == maxFindings {
			t.Logf("oncetest: %d findings, and %d schedules are left out: fix these first", maxFindings, len(list)-i)
			return
		}
		runner, ok := t.(interface {
			Run(string, func(*testing.T)) bool
		})
		if !ok {
			pr.try(t, s, ref)
			continue
		}
		runner.Run(strings.ReplaceAll(s.name, "/", "_"), func(t *testing.T) { pr.try(t, s, ref) })
	}
	if pr.findings == 0 && !ref.takesSteps() {
		s := schedule{name: "reference", window: "nothing was found, and there was nowhere to look"}
		t.Errorf("oncetest: %s", pr.explain(&finding{fault: unseen}, s, undisturbed, ref))
	}
}

// prover is a case without its type parameter.
type prover struct {
	setup    func(testing.TB) world
	messages []*broker.Message
	work     func(*broker.Message) string
	named    bool // Case.Work is set
	forgets  bool
	accept   func(reference, state string) bool
	deadline time.Duration
	quiet    time.Duration
	crashes  int
	seed     uint64
	findings int
}

// maxFindings is how many schedules with findings end the run.
const maxFindings = 20

// prover checks the case before anything runs.
func (c Case[W]) prover() (*prover, error) {
	pr := &prover{work: c.Work, named: c.Work != nil, forgets: c.Forget != nil, accept: c.Accept,
		deadline: cmp.Or(c.Deadline, 10*time.Second), quiet: cmp.Or(c.Quiet, 50*time.Millisecond),
		crashes: cmp.Or(c.Crashes, 200), seed: cmp.Or(c.Seed, 1)}
	switch {
	case c.Setup == nil || c.Run == nil || c.Probe == nil:
		return nil, errors.New("the Case needs Setup, Run and Probe")
	case len(c.Messages) == 0:
		return nil, errors.New("the Case has no Messages: give a few that matter")
	case pr.deadline < 0 || pr.quiet < 0 || pr.crashes < 0:
		return nil, errors.New("the Case has a negative Deadline, Quiet or Crashes")
	}
	var err error
	if pr.seed, err = overridden(pr.seed); err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, m := range c.Messages {
		if m == nil {
			return nil, errors.New("a message is nil")
		}
		copied := *m
		copied.Topic = cmp.Or(m.Topic, queue)
		if err := copied.Check(); err != nil {
			return nil, err
		}
		if seen[m.ID] {
			return nil, fmt.Errorf("two messages have the ID %q: give each its own, because the schedules repeat messages", m.ID)
		}
		seen[m.ID] = true
		pr.messages = append(pr.messages, &copied)
	}
	if pr.work == nil {
		pr.work = func(m *broker.Message) string { return m.ID }
	}
	if pr.accept == nil {
		pr.accept = func(string, string) bool { return false }
	}
	pr.setup = func(t testing.TB) world {
		w := c.Setup(t)
		world := world{
			run:   func(ctx context.Context, p *Process) error { return c.Run(ctx, p, w) },
			probe: func(ctx context.Context) (string, error) { return c.Probe(ctx, w) },
		}
		if c.Forget != nil {
			world.forget = func(ctx context.Context) error { return c.Forget(ctx, w) }
		}
		return world
	}
	return pr, nil
}

// overridden returns the seed of the environment variable ONCETEST_SEED, or else
// the given one.
func overridden(seed uint64) (uint64, error) {
	text := os.Getenv("ONCETEST_SEED")
	if text == "" {
		return seed, nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("ONCETEST_SEED is %q: give a number from 0 on", text)
	}
	return seed, nil
}
