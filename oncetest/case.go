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

// Case is a service to prove. Setup, Run, Probe and Messages are mandatory; the zero value of all other fields works.
type Case[W any] struct {
	// Setup makes an empty world: the store and its tables, doubles of the systems that the service calls. It is
	// called for each schedule, and cleans up with t.Cleanup.
	Setup func(t testing.TB) W

	// Run is one life of the service: it consumes the messages of p.Source() until ctx ends, and then returns. It
	// takes whatever it touches the world with through p. Two lives can run at once, and a new one follows one that
	// died, so what it keeps in variables of the world must be what survives a crash.
	Run func(ctx context.Context, p *Process, w W) error

	// Probe describes all that a customer could notice, a line for each thing, in the same order each time, without
	// times and random ids: "order 7: charged 49.99". It may be called while the service runs.
	Probe func(ctx context.Context, w W) (string, error)

	// Messages are what is delivered: a few that matter, each with an ID of its own.
	Messages []*broker.Message

	// Work names the unit of work that a message is about, as far as the business is concerned. Messages with an
	// equal one mean the same, and if it is set, one schedule sends them again with other IDs. Default: the ID.
	Work func(*broker.Message) string

	// Forget makes the service forget keys that it need not keep any longer. If it is set, one schedule delivers all
	// messages again after it: the state must stay, because the messages are parked, for example.
	Forget func(ctx context.Context, w W) error

	// Accept reports whether another state than the reference is right too: of work that is done at most once, and
	// parked where a crash leaves it unknown. Default: none is.
	Accept func(reference, state string) bool

	Deadline time.Duration // of each schedule; default 10 seconds
	Quiet    time.Duration // without change, after which a state counts as final; default 50 milliseconds

	// Crashes is how many crashes at steps are tried at most. If there are more steps, Seed chooses. Default 200.
	Crashes int

	// Seed is that of everything that is left to chance; default 1. The environment's ONCETEST_SEED goes before it.
	Seed uint64
}

// Prove delivers the messages once, in order and undisturbed, for the state that is right, and then again in an empty
// world under each schedule. A state that differs is an error of t, and so is a message that is never settled, or a
// Run that ends. Each schedule is a subtest where t is a *testing.T, so it can be run alone.
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
		if pr.findings == enough {
			t.Logf("oncetest: %d findings, and %d schedules are left out: mend these first", enough, len(list)-i)
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

// prover is a case without its type.
type prover struct {
	setup    func(testing.TB) world
	messages []*broker.Message
	work     func(*broker.Message) string
	named    bool // the case has a Work
	forgets  bool
	accept   func(reference, state string) bool
	deadline time.Duration
	quiet    time.Duration
	crashes  int
	seed     uint64
	findings int
}

// enough is how many schedules may find something before the rest is left out.
const enough = 20

// prover checks everything that can be checked before anything runs.
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
	if text := os.Getenv("ONCETEST_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("ONCETEST_SEED is %q: give a number from 0 on", text)
		}
		pr.seed = seed
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
			return nil, fmt.Errorf("two messages have the ID %q: give each its own; delivering one twice is what schedules do", m.ID)
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
