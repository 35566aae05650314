package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ear hears what its store puts, and what others put, by LISTEN on a connection of its own.
type ear struct {
	bell *bell
	conn *pgx.Conn
	rung chan struct{} // has room for one

	stop context.CancelFunc
	deaf chan struct{} // closed when err is set: nobody listens any more
	err  error
}

// earPing is how often a connection that is silent has to show that it is there.
const earPing = 30 * time.Second

// HearOutbox begins to listen, on a connection of its own: one more than those of the pool, with the settings of the
// pool and what its BeforeConnect makes of them. It first makes sure that it hears: behind a pooler in transaction
// mode, such as PgBouncer, nothing would ever arrive, and the error says so after a second.
func (s *Store) HearOutbox(ctx context.Context) (store.Ear, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	channel, err := s.bell.place(ctx, s.pool)
	if err != nil {
		return nil, explain(err)
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, explain(err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	e := &ear{bell: s.bell, conn: conn, rung: make(chan struct{}, 1), stop: stop, deaf: make(chan struct{})}
	s.bell.add(e) // before it listens: what its store puts is told here only
	if err := e.listen(ctx, channel); err != nil {
		close(e.deaf)
		e.Close()
		return nil, explain(err)
	}
	go e.run(life)
	return e, nil
}

// dial makes a connection like those of the pool.
func (s *Store) dial(ctx context.Context) (*pgx.Conn, error) {
	pool := s.pool.Config()
	settings := pool.ConnConfig
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, settings); err != nil {
			return nil, err
		}
	}
	settings.OnNotification = nil // else pgx keeps none for us
	return pgx.ConnectConfig(ctx, settings)
}

// listen listens, and waits for a NOTIFY of its own that comes another way.
func (e *ear) listen(ctx context.Context, channel string) error {
	listen := "listen " + pgx.Identifier{channel}.Sanitize()
	if err := e.conn.PgConn().Exec(ctx, listen).Close(); err != nil {
		return err
	}
	test := rand.Text()
	if err := e.bell.notify(ctx, test); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, bellTime)
	defer cancel()
	for {
		n, err := e.conn.WaitForNotification(limited)
		switch {
		case err != nil && ctx.Err() == nil && limited.Err() != nil:
			return fmt.Errorf("%w: a NOTIFY did not arrive within %v: is there a pooler in transaction mode between? "+
				"Then LISTEN does not work, and relays have to ask", errDeaf, bellTime)
		case err != nil:
			return err
		case n.Payload == test:
			return nil
		}
		e.hear(n)
	}
}

var errDeaf = errors.New("once: nothing is heard of the outbox")

// run listens until it is told to stop, or cannot.
func (e *ear) run(life context.Context) {
	defer close(e.deaf)
	for e.err == nil {
		n, err := e.next(life)
		switch {
		case err == nil:
			e.hear(n)
		case life.Err() != nil:
			e.err = fmt.Errorf("%w: the ear was closed", once.ErrClosed)
		case e.conn.IsClosed() || !pgconn.Timeout(err):
			e.err = fmt.Errorf("%w: %w", errDeaf, err)
		default:
			e.err = e.ping(life)
		}
	}
}

func (e *ear) next(life context.Context) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(life, earPing)
	defer cancel()
	return e.conn.WaitForNotification(ctx)
}

// ping finds out whether a connection that is silent is still there.
func (e *ear) ping(life context.Context) error {
	ctx, cancel := context.WithTimeout(life, endTime)
	defer cancel()
	if err := e.conn.Ping(ctx); err != nil {
		return fmt.Errorf("%w: %w", errDeaf, err)
	}
	return nil
}

// hear passes over what the ear was told already, by the bell of its own store.
func (e *ear) hear(n *pgconn.Notification) {
	if n.Payload != e.bell.self {
		e.ring()
	}
}

func (e *ear) ring() {
	select {
	case e.rung <- struct{}{}:
	default:
	}
}

// Wait waits until messages may have been put.
func (e *ear) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-e.rung:
		return nil
	case <-e.deaf:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Far reports that it hears of what other processes put, too.
func (e *ear) Far() bool { return true }

// Close ends the connection.
func (e *ear) Close() {
	e.bell.remove(e)
	e.stop()
	<-e.deaf
	ctx, cancel := context.WithTimeout(context.Background(), bellTime)
	defer cancel()
	_ = e.conn.Close(ctx)
}

func (b *bell) add(e *ear) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ears[e] = struct{}{}
}

func (b *bell) remove(e *ear) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ears, e)
}
