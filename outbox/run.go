package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// Run publishes until ctx ends, and returns nil once everything in progress is
// confirmed and settled, and its lanes are free for other relays. Outages of
// the broker or the database do not end it. If it returns an error, the Relay
// or the store is misconfigured: the text says what to do. Failure to read the
// database's log is logged and retried.
func (r *Relay) Run(ctx context.Context) error {
	run, err := newRun(r)
	if err != nil {
		return err
	}
	return run.run(ctx)
}

// relayRun is one Run of a relay.
type relayRun struct {
	*env
	lanes    *lanes
	presence *presence
}

func newRun(r *Relay) (*relayRun, error) {
	set := r.withDefaults()
	if err := set.check(); err != nil {
		return nil, err
	}
	_, logged := once.As[store.OutboxLog](set.Store)
	e := &env{Relay: *set, logged: logged, handOver: handingOver(set), notified: make(chan struct{}, 1)}
	id := name.Token()
	e.id.Store(&id)
	l := newLanes(e)
	return &relayRun{env: e, lanes: l, presence: newPresence(e, l)}, nil
}

// run does everything concurrently, until ctx ends. Work in progress gets the
// context working, which lasts for StopTime longer.
func (r *relayRun) run(ctx context.Context) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(r.StopTime, stop)
		context.AfterFunc(working, func() { timer.Stop() })
	})()

	defer r.presence.end() // after the lanes are free, so that nobody looks for this relay
	r.presence.begin(ctx)
	if err := r.begin(ctx); err != nil || ctx.Err() != nil {
		if err == nil {
			r.lanes.leave(working) // a lease may have been granted
		}
		return err
	}
	var side sync.WaitGroup
	for _, do := range []func(context.Context){r.listen, r.forget} {
		side.Add(1)
		go func() {
			defer side.Done()
			do(ctx)
		}()
	}
	var publishing sync.WaitGroup
	table, log := newTableRelay(r.env, r.lanes), &logReader{r.env}
	for _, do := range []func(ctx, working context.Context){table.run, log.run} {
		publishing.Add(1)
		go func() {
			defer publishing.Done()
			do(ctx, working)
		}()
	}
	var renewing sync.WaitGroup
	for _, do := range []func(){func() { r.lanes.renew(ctx, working) }, func() { r.presence.run(working) }} {
		renewing.Add(1)
		go func() {
			defer renewing.Done()
			do()
		}()
	}
	publishing.Wait() // the leases are renewed until nothing is in progress
	r.lanes.end()
	renewing.Wait()
	side.Wait()
	r.lanes.leave(working)
	return nil
}

// begin leases the first lanes. It returns an error if the store has no tables,
// and tries again while the store fails.
func (r *relayRun) begin(ctx context.Context) error {
	pause := backoffOf(firstBackoff, backoffLimit)
	for {
		_, err := r.lanes.ask(ctx, true)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case errors.Is(err, once.ErrInvalid) || errors.Is(err, once.ErrClosed):
			return err
		}
		r.Logger.WarnContext(ctx, "outbox: the store failed, and nothing is published", logs.Spaced(""), "error", err)
		_ = sleep(ctx, pause.Next())
	}
}

// listen notifies the table's reader of messages, if the store can.
func (r *relayRun) listen(ctx context.Context) {
	bell, ok := once.As[store.Bell](r.Store)
	if !ok {
		return
	}
	pause := backoffOf(time.Second, time.Minute)
	for ctx.Err() == nil {
		err := r.hear(ctx, bell)
		r.hearsAll.Store(false)
		if ctx.Err() != nil {
			return
		}
		r.Logger.WarnContext(ctx, "outbox: the store does not notify of messages, and is polled", logs.Spaced(""), "error", err)
		_ = sleep(ctx, pause.Next())
	}
}

func (r *relayRun) hear(ctx context.Context, bell store.Bell) error {
	ear, err := bell.HearOutbox(ctx)
	if err != nil {
		return err
	}
	defer ear.Close()
	r.hearsAll.Store(ear.Far())
	for {
		signal(r.notified) // at first, of messages that were put while nobody listened
		if err := ear.Wait(ctx); err != nil {
			return err
		}
	}
}

// forgetLimit is how many published messages are deleted at a time.
const forgetLimit = 1000

// forget deletes published messages that were kept for KeepFor.
func (r *relayRun) forget(ctx context.Context) {
	for r.Then == store.Keep {
		for more := true; more; {
			limited, cancel := r.limit(ctx)
			n, err := r.Store.ForgetOutgoing(limited, r.KeepFor, forgetLimit)
			cancel()
			if err != nil && ctx.Err() == nil {
				r.Logger.WarnContext(ctx, "outbox: published messages could not be deleted", logs.Spaced(""), "error", err)
			}
			more = n == forgetLimit && sleep(ctx, time.Second/10) == nil
		}
		if sleep(ctx, min(time.Minute, max(r.KeepFor/10, time.Second))) != nil {
			return
		}
	}
}
