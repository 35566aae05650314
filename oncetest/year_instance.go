//go:build go1.25

package oncetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

// Latest is how long after it left a call of [Instance.Call] can still arrive: the
// SettleTime of an operation whose Lookup uses [Instance.Find].
const Latest = sim.Latest

// Instance is one instance of a service, from its start until it is stopped or
// killed. All calls of the service leave it here. Nothing that a killed instance
// calls arrives, except what was on its way. Its goroutines get errors, and their
// context ends.
type Instance struct {
	day     *day
	process *sim.Process
	ctx     context.Context
	program Program
}

// Database is the store of a service in a [Year]. It is a [memstore.Store] that is
// called over a boundary, and has its other capabilities as well: see [once.As].
type Database interface {
	once.TxStore[*memstore.Tx]
	store.Outbox[*memstore.Tx]
}

// Name returns the name of the instance, such as "instance1.2": the second life of
// the first one since the morning.
func (i *Instance) Name() string { return i.process.Name }

// Store returns the store of the service. All instances share it.
func (i *Instance) Store() Database { return i.day.store.Link(i.process) }

// Publisher returns a publisher to the broker.
func (i *Instance) Publisher() broker.Publisher { return i.day.broker.Publisher(i.process) }

// Queue returns a queue of the broker. It has the messages of the topic with its
// own name, and of these topics.
func (i *Instance) Queue(name string, topics ...string) broker.Source {
	for _, topic := range topics {
		i.day.broker.Bind(name, topic)
	}
	i.day.usesQueue(name)
	return i.day.broker.Source(i.process, i.day.broker.Queue(name), name)
}

// logPartitions is the number of partitions of each log.
const logPartitions = 3

// Log returns the log of a topic as a group of consumers reads it.
func (i *Instance) Log(topic, group string) broker.Source {
	return i.day.broker.Source(i.process, i.day.broker.Log(topic, group, logPartitions), group)
}

// Row writes the row of an effect in a transaction. It happens when the transaction
// commits.
func (i *Instance) Row(ctx context.Context, tx *memstore.Tx, effect, id string) error {
	c := sim.Call{Links: sim.StoreLinks, What: "writes " + effect, About: id, Faults: sim.ReadFault}
	return sim.Do(ctx, i.process, c, func(context.Context) error {
		i.day.within(tx, row{effect, id})
		return nil
	})
}

// Transact runs body in a transaction that the service itself begins and ends, as
// once.InTx needs it. It commits if body returns nil, and rolls back otherwise.
// After an error of the commit, such as once.ErrOutcomeUnknown, it may have been
// applied.
func (i *Instance) Transact(ctx context.Context, body func(tx *memstore.Tx) error) error {
	call := sim.Call{Links: sim.StoreLinks, What: "Begin", Faults: sim.ReadFault}
	if err := sim.Do(ctx, i.process, call, func(context.Context) error { return nil }); err != nil {
		return err
	}
	tx := i.day.shared.store.Begin()
	defer tx.Rollback() // also of a transaction whose connection is lost
	if err := body(tx); err != nil {
		return err
	}
	call = sim.Call{Links: sim.StoreLinks, What: "Commit", Unknown: once.ErrOutcomeUnknown,
		Faults: []sim.FaultKind{sim.Before, sim.After, sim.Hang}}
	return sim.Do(ctx, i.process, call, func(context.Context) error {
		err := tx.Commit()
		if err == nil {
			i.day.committed(tx)
		}
		return err
	})
}

// Call has an effect happen at the system outside that is named like the effect. It
// is sent with a key, which may be empty. After an error, the effect may have
// happened or may still happen, unless once.IsDialError reports true.
func (i *Instance) Call(ctx context.Context, effect, id, key string) error {
	c := sim.Call{Links: []sim.Link{systemLink(effect)}, What: "calls " + effect, About: id, Faults: sim.WriteFault, Within: Latest}
	if i.day.effects[effect].HonoursKeys {
		c.Faults = sim.AnyFault
	}
	return dialed(sim.Do(ctx, i.process, c, func(ctx context.Context) error {
		if i.day.refuses(row{effect, id}) {
			return ErrRefused
		}
		i.day.hasArrived(ctx, id)
		i.day.called(row{effect, id}, key)
		return nil
	}))
}

// Find asks the system of an effect whether a call with this key has arrived.
func (i *Instance) Find(ctx context.Context, effect, key string) (found bool, err error) {
	c := sim.Call{Links: []sim.Link{systemLink(effect)}, What: "asks " + effect, About: key, Faults: sim.ReadFault}
	found, err = sim.Cross(ctx, i.process, c, func(context.Context) (bool, error) { return i.day.hasSeen(effect, key), nil })
	return found, dialed(err)
}

func (l *ledger) hasSeen(effect, key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[effect+" "+key]
}

// dialed makes an error of a system that is down one of dialing.
func dialed(err error) error {
	if errors.Is(err, sim.ErrDown) {
		return &net.OpError{Op: "dial", Net: "sim", Err: err}
	}
	return err
}

// stopTime is how long what a program runs may take to return.
const stopTime = 10 * time.Minute

// instance is the program of an instance.
func (d *day) instance(ctx context.Context, p *sim.Process, number int) error {
	i := &Instance{day: d, process: p, ctx: ctx}
	i.program = d.Start(i)
	d.serves(number, i)
	defer d.serves(number, nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(i.program.Run))
	for n, run := range i.program.Run {
		go func() { ended <- runError(ctx, n, run(ctx)) }()
	}
	running, failed := len(i.program.Run), error(nil)
	select {
	case failed = <-ended:
		running--
		cancel()
	case <-ctx.Done():
	}
	patience := time.NewTimer(stopTime)
	defer patience.Stop()
	for ; running > 0; running-- {
		select {
		case <-ended:
		case <-patience.C:
			d.world.Broke(lawRunStays, p.Name, "%d of Run have not returned %v after their context ended", running, stopTime)
			return nil
		}
	}
	return failed
}

// runError returns what is wrong if a function of Program.Run returns.
func runError(ctx context.Context, n int, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		return fmt.Errorf("Program.Run[%d] returned nil", n)
	}
	return fmt.Errorf("Program.Run[%d] returned: %w", n, err)
}
