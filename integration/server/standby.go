//go:build linux

package server

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"github.com/effectively-once/once/internal/backoff"
	"github.com/jackc/pgx/v5"
)

// standby is a PostgreSQL that replicates another one until it is promoted.
type standby struct {
	*postgres
	primary *Instance
}

// StartStandby starts a hot standby of a PostgreSQL of [StartPostgres]. To the
// primary it is the application "standby". The context limits only the start.
func StartStandby(ctx context.Context, primary *Instance) (*Instance, error) {
	e, err := newPostgres()
	if err != nil {
		return nil, err
	}
	e.password = primary.engine.(*postgres).password
	return start(ctx, &standby{e, primary}, FreePort)
}

func (e *standby) prepare(ctx context.Context, h *home) error {
	from, err := url.Parse(e.primary.DSN())
	if err != nil {
		return err
	}
	from.RawQuery = "sslmode=disable&application_name=standby"
	if err := h.run(ctx, filepath.Join(e.bin, "pg_basebackup"), "--pgdata="+e.dataDir(h), "--dbname="+from.String(),
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"); err != nil {
		return err
	}
	return e.configure(h) // with its own directory of sockets
}

// Promote makes a standby a primary, and returns when it accepts writes.
func Promote(ctx context.Context, standby *Instance) error {
	conn, err := pgx.Connect(ctx, standby.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var promoted bool
	if err := conn.QueryRow(ctx, "SELECT pg_promote(true, 60)").Scan(&promoted); err != nil || !promoted {
		return fmt.Errorf("promote %s: %v, %w", standby.Identity(), promoted, err)
	}
	return nil
}

// AwaitStandby waits until a primary sends its log to a standby.
func AwaitStandby(ctx context.Context, primary *Instance) error {
	conn, err := pgx.Connect(ctx, primary.DSN())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	pause := &backoff.Backoff{First: 10 * time.Millisecond, Limit: 100 * time.Millisecond}
	for {
		var n int
		err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'standby' AND state = 'streaming'").Scan(&n)
		if err != nil || n > 0 {
			return err
		}
		if err := backoff.Sleep(ctx, pause.Next()); err != nil {
			return err
		}
	}
}
