package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"

	"github.com/effectively-once/once/bench/internal/turn"
)

// payArgs are the arguments of a job.
type payArgs struct {
	ID int `json:"id"`
}

func (payArgs) Kind() string { return "pay" }

// riverJobs completes River jobs in the transaction of their work, as its
// documentation advises. The jobs are already running: inserting and fetching
// them is not measured.
type riverJobs struct {
	pool    *pgxpool.Pool
	client  *river.Client[pgx.Tx]
	running chan *rivertype.JobRow
}

const (
	jobsPerMillisecond = 20 // more than any turn completes
	maxJobs            = 100_000
)

func (o *opened) addRiver(ctx context.Context) error {
	driver := riverpgxv5.New(o.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	client, err := river.NewClient(driver, &river.Config{Logger: quiet()})
	if err != nil {
		return err
	}
	r := &riverJobs{pool: o.pool, client: client, running: make(chan *rivertype.JobRow, maxJobs)}
	o.add(peer{turn.Peer{Name: "River " + version("github.com/riverqueue/river") + ", JobCompleteTx", Scenario: turn.Guarded}, r.run})
	return nil
}

func (r *riverJobs) run(ctx context.Context, workers int, length time.Duration) (turn.Tally, error) {
	if err := r.provide(ctx, int(length.Milliseconds())*jobsPerMillisecond); err != nil {
		return turn.Tally{}, err
	}
	return turn.Run(rivertest.WorkContext(ctx, r.client), workers, length, r.complete)
}

// provide refills the running jobs.
func (r *riverJobs) provide(ctx context.Context, jobs int) error {
	missing := min(jobs, maxJobs) - len(r.running)
	if missing <= 0 {
		return nil
	}
	params := make([]river.InsertManyParams, missing)
	for i := range params {
		params[i].Args = payArgs{ID: someAccount()}
	}
	inserted, err := r.client.InsertMany(ctx, params)
	if err != nil {
		return err
	}
	_, err = r.pool.Exec(ctx, `UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = '{bench}'
WHERE state = 'available'`)
	if err != nil {
		return err
	}
	for _, result := range inserted {
		result.Job.State, result.Job.Attempt = rivertype.JobStateRunning, 1
		r.running <- result.Job
	}
	return nil
}

func (r *riverJobs) complete(ctx context.Context) error {
	job := &river.Job[payArgs]{}
	select {
	case job.JobRow = <-r.running:
	default:
		return errors.New("no running jobs are left: make the turn shorter with -turn")
	}
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, updateSQL, someAccount()); err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
