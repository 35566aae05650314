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

// dbosWork runs transactions of DBOS. Its tables are in the database of the work and share its pool, so that the rows
// and the record of the step are one commit: the fastest of the ways that it offers.
type dbosWork struct {
	ctx    dbos.Context
	source *dbos.DataSource
	loops  sync.Map // by the name of a workflow: what it does over and over
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

// runWorkflows gives each unit of work a workflow, whose id is the key.
func (d *dbosWork) runWorkflows(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
	return turn.Run(ctx, workers, length, func(context.Context) error {
		return d.await(d.one, rand.Text())
	})
}

// runSteps gives each worker one workflow, and counts the steps in it.
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
