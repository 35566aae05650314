package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// Relay publishes the messages of an outbox. Store and Publisher are required;
// the zero value of all other fields is valid. A Relay is not changed by use,
// and may run several times concurrently, in any number of processes: relays
// divide the lanes of an outbox among themselves by leases.
type Relay struct {
	Store     store.Relayable
	Publisher broker.Publisher // the caller closes it

	// Batch is how many messages are published together. Default: 500.
	Batch int

	// MaxBytes limits the total size of the bodies in memory. A larger message is
	// processed alone. Default: 16 MiB.
	MaxBytes int

	// Overtaking allows several messages of one ordering key in a batch. This is
	// much faster for keys with many messages, but breaks their order if the
	// broker refuses a message and accepts a later one.
	Overtaking bool

	// Then says what happens to the rows of published messages: store.Delete,
	// store.Keep or store.Archive.
	Then store.Ending

	// KeepFor is how long store.Keep keeps the rows of published messages.
	// Default: a week. A janitor.Janitor of the store deletes them after its
	// KeepPublished, 90 days by default, if that is shorter.
	KeepFor time.Duration

	Retry   Retry   // for messages that the broker refuses while it accepts others
	OnStuck OnStuck // what happens to later messages of an ordering key

	// Lease is how long a lane stays with a relay that has stopped responding. It
	// must be at least twice PublishTime. Default: 30 seconds.
	Lease time.Duration

	// PublishTime limits one call of the Publisher. Default: 10 seconds.
	PublishTime time.Duration

	// Poll is the longest interval between two reads of the table. A relay reads
	// as soon as it is notified of a message, and then at growing intervals.
	// Default: a second if the store reports messages put by any process
	// ([store.Ear]), else 200 ms.
	Poll time.Duration

	// StopTime is how long work in progress may continue after the context of Run
	// ends. Default: 20 seconds.
	StopTime time.Duration

	Logger   *slog.Logger // for problems that no caller sees; default: slog.Default()
	Stats    *Stats       // counts messages by result; optional
	Observer Observer     // observes each call of the Publisher; optional
}

// Retry configures how often and when a failed message is retried.
type Retry struct {
	Attempts int           // after these the message is Stuck; default 10
	First    time.Duration // delay after the first failure, doubled each time, with jitter; default 1 second
	Limit    time.Duration // longest delay; default 5 minutes
}

// OnStuck says what happens to later messages with the ordering key of a Stuck
// message.
type OnStuck int

const (
	HoldOrder OnStuck = iota // they wait until a person decides
	Pass                     // they are published; order is kept among messages that are not Stuck
)

// Run publishes until ctx ends, and returns nil once everything in progress is
// confirmed and settled, and its lanes are free for other relays. Outages of
// the broker or the database do not end it. If it returns an error, the Relay
// or the store is misconfigured: the text says what to do. Failure to read the
// database's log is logged and retried.
func (r *Relay) Run(ctx context.Context) error {
	run, err := r.newRun()
	if err != nil {
		return err
	}
	return run.all(ctx)
}

func (r *Relay) newRun() (*run, error) {
	set := *r
	set.Batch = cmp.Or(set.Batch, 500)
	set.MaxBytes = cmp.Or(set.MaxBytes, 16<<20)
	set.KeepFor = cmp.Or(set.KeepFor, 7*24*time.Hour)
	set.Retry.Attempts = cmp.Or(set.Retry.Attempts, 10)
	set.Retry.First = cmp.Or(set.Retry.First, time.Second)
	set.Retry.Limit = cmp.Or(set.Retry.Limit, max(5*time.Minute, set.Retry.First))
	set.Lease = cmp.Or(set.Lease, 30*time.Second)
	set.PublishTime = cmp.Or(set.PublishTime, 10*time.Second)
	set.StopTime = cmp.Or(set.StopTime, 20*time.Second)
	set.Logger = logs.Of(set.Logger)
	if set.Stats == nil {
		set.Stats = new(Stats)
	}
	switch {
	case r.Store == nil || r.Publisher == nil:
		return nil, invalid("a Relay needs a Store and a Publisher")
	case r.Store.Options() == nil:
		return nil, invalid("the Options of %T are nil: a wrapper forwards those of its store", r.Store)
	case r.Store.Options().Sealing.Validate() != nil:
		return nil, r.Store.Options().Sealing.Validate()
	case set.Batch < 1 || set.Batch > maxChunk || set.MaxBytes < 1:
		return nil, invalid("Batch %d or MaxBytes %d: a batch has 1 to %d messages, and at least one byte", r.Batch, r.MaxBytes, maxChunk)
	case set.Then < store.Delete || set.Then > store.Archive || r.OnStuck < HoldOrder || r.OnStuck > Pass:
		return nil, invalid("Then is none of Delete, Keep and Archive, or OnStuck neither HoldOrder nor Pass")
	case set.Retry.Attempts < 1 || set.Retry.First < 0 || set.Retry.Limit < set.Retry.First:
		return nil, invalid("Retry needs at least one attempt, and a Limit that is not below First")
	case set.PublishTime < 0 || set.StopTime < 0 || set.KeepFor < 0 || set.Poll < 0:
		return nil, invalid("PublishTime, StopTime, KeepFor and Poll must not be negative")
	case set.Lease < 2*set.PublishTime:
		return nil, invalid("the Lease of %v is below twice the PublishTime of %v, so another relay would send what "+
			"this one is still sending: raise the one, or lower the other", set.Lease, set.PublishTime)
	}
	me := name.Token()
	s := &run{Relay: set, me: me, rung: make(chan struct{}, 1)}
	s.lanes = newLanes(s)
	return s, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: outbox: %s", once.ErrInvalid, fmt.Sprintf(format, args...))
}

// run is a Relay that runs.
type run struct {
	Relay
	me      [16]byte
	lanes   *lanes
	rung    chan struct{} // something may have been put
	through atomic.Int64  // how many messages got through: Stats may be shared
	calling atomic.Int64  // since when the pump waits for the publisher, in nanoseconds; 0: it does not
	far     atomic.Bool   // what rings hears of all processes
}

// all runs everything there is to do, until ctx ends.
func (r *run) all(ctx context.Context) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(r.StopTime, stop)
		context.AfterFunc(working, func() { timer.Stop() })
	})()

	if err := r.begin(ctx); err != nil || ctx.Err() != nil {
		if err == nil {
			r.lanes.leave(working) // what was asked for may have been given
		}
		return err
	}
	var side sync.WaitGroup
	for _, do := range []func(context.Context){r.listen, r.keep} {
		side.Add(1)
		go func() {
			defer side.Done()
			do(ctx)
		}()
	}
	var main sync.WaitGroup
	for _, do := range []func(ctx, working context.Context){r.pump, r.tail} {
		main.Add(1)
		go func() {
			defer main.Done()
			do(ctx, working)
		}()
	}
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		r.lanes.renew(ctx, working)
	}()
	main.Wait() // the lanes are renewed until nothing is on its way any more
	r.lanes.end()
	<-renewed
	side.Wait()
	r.lanes.leave(working)
	return nil
}

// begin leases the first lanes. Tables that were never made are told from a database in trouble.
func (r *run) begin(ctx context.Context) error {
	pause := backoffOf(firstPause, longestWait)
	for {
		_, err := r.lanes.ask(ctx, true)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case errors.Is(err, once.ErrInvalid) || errors.Is(err, once.ErrClosed):
			return err
		}
		r.Logger.WarnContext(ctx, "outbox: the store is in trouble, and nothing is published", logs.Spaced(""), "error", err)
		_ = sleep(ctx, pause.Next())
	}
}
