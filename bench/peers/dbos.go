package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"

	"github.com/effectively-once/once/bench/internal/turn"
)

// dbosWork runs transactions of DBOS. Its tables are in the same database and
// share the pool, so that one commit holds the rows and the record of the step.
// This is its fastest way.
type dbosWork struct {
	ctx    dbos.Context
	source *dbos.DataSource
	loops  sync.Map // the repeated work, by name of its workflow
}

type repeater func(unit func() error) error

func (o *opened) addDBOS(ctx context.Context) error {
	system, err := dbos.NewContext(ctx, dbos.Config{AppName: "once-bench", SystemDBPool: o.pool, Logger: quiet()})
	if err != nil {
		return err
	}
	d := &dbosWork{ctx: system}
	dbos.RegisterWorkflow(system, d.one)
	dbos.RegisterWorkflow(system, d.many)
	if err := dbos.Launch(system); err != nil {
		return err
	}
	o.closers = append(o.closers, func() { _ = dbos.Shutdown(system, 5*time.Second) })
	if d.source, err = dbos.NewDataSource(system, o.pool); err != nil {
		return err
	}
	name := "DBOS " + version("github.com/dbos-inc/dbos-transact-golang")
	o.add(peer{turn.Peer{Name: name + ", transaction step", Scenario: turn.Guarded}, d.runSteps})
	o.add(peer{turn.Peer{Name: name + ", workflow of one transaction", Scenario: turn.Guarded}, d.runWorkflows})
	return nil
}

// runWorkflows runs each unit of work as a workflow whose ID is the key.
func (d *dbosWork) runWorkflows(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
	return turn.Run(ctx, workers, length, func(context.Context) error {
		return d.await(d.one, rand.Text())
	})
}

// runSteps runs one workflow per worker and counts its steps.
func (d *dbosWork) runSteps(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
	return turn.RunWithin(ctx, workers, length, func(_ context.Context, repeat func(func() error) error) error {
		id := rand.Text()
		d.loops.Store(id, repeater(repeat))
		defer d.loops.Delete(id)
		return d.await(d.many, id)
	})
}

func (d *dbosWork) await(work dbos.Workflow[string, bool], id string) error {
	handle, err := dbos.RunWorkflow(d.ctx, work, id, dbos.WithWorkflowID(id))
	if err != nil {
		return err
	}
	_, err = handle.GetResult()
	return err
}

func (d *dbosWork) one(ctx dbos.Context, _ string) (bool, error) { return d.step(ctx) }

func (d *dbosWork) many(ctx dbos.Context, id string) (bool, error) {
	loop, ok := d.loops.Load(id)
	if !ok {
		return false, fmt.Errorf("nobody waits for the workflow %s", id)
	}
	return true, loop.(repeater)(func() error {
		_, err := d.step(ctx)
		return err
	})
}

func (d *dbosWork) step(ctx dbos.Context) (bool, error) {
	return dbos.RunAsTransaction(ctx, d.source, func(ctx context.Context, tx dbos.Tx) (bool, error) {
		_, err := tx.Exec(ctx, updateSQL, someAccount())
		return true, err
	})
}
