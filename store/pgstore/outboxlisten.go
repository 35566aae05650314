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

// listener learns of messages that its own store puts, and by LISTEN on a
// connection of its own of those that others put.
type listener struct {
	notifier *notifier
	conn     *pgx.Conn
	woken    chan struct{} // has room for one

	stop  context.CancelFunc
	ended chan struct{} // closed when err is set, and nothing is received any more
	err   error
}

// pingGap is after how much silence the connection is checked.
const pingGap = 30 * time.Second

// HearOutbox begins to listen, on a connection of its own: one more than those
// of the pool, with the settings of the pool and what its BeforeConnect makes
// of them. It first checks that a NOTIFY arrives. Through a pooler in
// transaction mode, such as PgBouncer, none would, and HearOutbox returns an
// error after a second.
func (s *Store) HearOutbox(ctx context.Context) (store.Ear, error) {
	if err := s.ready(ctx, s.pool); err != nil {
		return nil, err
	}
	channel, err := s.notifier.lookUpChannel(ctx, s.pool)
	if err != nil {
		return nil, explain(err)
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return nil, explain(err)
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &listener{notifier: s.notifier, conn: conn, woken: make(chan struct{}, 1), stop: stop, ended: make(chan struct{})}
	s.notifier.add(l) // before it listens, because NOTIFY does not report what its own store puts
	if err := l.listen(ctx, channel); err != nil {
		close(l.ended)
		l.Close()
		return nil, explain(err)
	}
	go l.run(life)
	return l, nil
}

// dial opens a connection like those of the pool.
func (s *Store) dial(ctx context.Context) (*pgx.Conn, error) {
	pool := s.pool.Config()
	settings := pool.ConnConfig
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, settings); err != nil {
			return nil, err
		}
	}
	settings.OnNotification = nil // pgx queues notifications only if this is not set
	return pgx.ConnectConfig(ctx, settings)
}

// listen begins to listen, and waits for a NOTIFY that it sends by the pool.
func (l *listener) listen(ctx context.Context, channel string) error {
	listen := "listen " + pgx.Identifier{channel}.Sanitize()
	if err := l.conn.PgConn().Exec(ctx, listen).Close(); err != nil {
		return err
	}
	test := rand.Text()
	if err := l.notifier.send(ctx, test); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	for {
		n, err := l.conn.WaitForNotification(limited)
		switch {
		case err != nil && ctx.Err() == nil && limited.Err() != nil:
			return fmt.Errorf("%w: a NOTIFY did not arrive within %v: is there a pooler in transaction mode between? "+
				"Then LISTEN does not work, and relays have to poll", errNotListening, notifyTime)
		case err != nil:
			return err
		case n.Payload == test:
			return nil
		}
		l.handle(n)
	}
}

var errNotListening = errors.New("once: the store does not receive notifications about the outbox")

// run listens until it is stopped, or the connection breaks.
func (l *listener) run(life context.Context) {
	defer close(l.ended)
	for l.err == nil {
		n, err := l.next(life)
		switch {
		case err == nil:
			l.handle(n)
		case life.Err() != nil:
			l.err = fmt.Errorf("%w: the ear was closed", once.ErrClosed)
		case l.conn.IsClosed() || !pgconn.Timeout(err):
			l.err = fmt.Errorf("%w: %w", errNotListening, err)
		default:
			l.err = l.ping(life)
		}
	}
}

func (l *listener) next(life context.Context) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(life, pingGap)
	defer cancel()
	return l.conn.WaitForNotification(ctx)
}

// ping checks a connection that was silent.
func (l *listener) ping(life context.Context) error {
	ctx, cancel := context.WithTimeout(life, endTime)
	defer cancel()
	if err := l.conn.Ping(ctx); err != nil {
		return fmt.Errorf("%w: %w", errNotListening, err)
	}
	return nil
}

// handle ignores what the notifier of the own store has told the listener
// before.
func (l *listener) handle(n *pgconn.Notification) {
	if n.Payload != l.notifier.self {
		l.wake()
	}
}

func (l *listener) wake() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

// Wait waits until messages may have been put.
func (l *listener) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-l.woken:
		return nil
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Far reports that the listener learns of messages that other processes put.
func (l *listener) Far() bool { return true }

// Close closes the connection.
func (l *listener) Close() {
	l.notifier.remove(l)
	l.stop()
	<-l.ended
	ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
	defer cancel()
	_ = l.conn.Close(ctx)
}

func (n *notifier) add(l *listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[l] = struct{}{}
}

func (n *notifier) remove(l *listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, l)
}
