package lostreply_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once/internal/testenv"
)

// severed is a connection that breaks before the next write.
type severed struct {
	net.Conn
	broken *atomic.Bool
}

var errSevered = errors.New("severed")

func (c severed) Write(b []byte) (int, error) {
	if c.broken.Load() {
		_ = c.Close()
		return 0, errSevered
	}
	return c.Conn.Write(b)
}

// After a batch could not be sent, pgx v5.8.0 and older may panic in a goroutine
// of theirs, which ends the program: they close the connection while the timer
// of the write still runs. It is a race, so one batch proves nothing.
func TestBatchesThatCannotBeSent(t *testing.T) {
	config, err := pgx.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // one write for the whole batch
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 250 {
				if err := sendSevered(t.Context(), config.Copy()); !errors.Is(err, errSevered) {
					t.Errorf("the batch returned %v", err)
				}
			}
		})
	}
	all.Wait()
}

// sendSevered sends a batch over a connection that breaks, as does the one that
// is to cancel the query.
func sendSevered(ctx context.Context, config *pgx.ConnConfig) error {
	var broken atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if broken.Load() {
			return nil, errSevered
		}
		conn, err := dial(ctx, network, address)
		return severed{conn, &broken}, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	broken.Store(true)
	b := &pgx.Batch{}
	b.Queue("SELECT 1")
	err = conn.SendBatch(ctx, b).Close()
	<-conn.PgConn().CleanupDone()
	return err
}
