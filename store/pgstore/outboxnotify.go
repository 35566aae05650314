package pgstore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
)

// notifier tells listeners that messages were put. It tells those of its own
// store at once if the messages are committed, and all others by NOTIFY.
//
// NOTIFY is never part of the transaction that puts: PostgreSQL commits one
// transaction with a NOTIFY at a time, and flushes its log under that lock. It
// is sent in a transaction of its own, which does not wait for the disk, once
// for all messages that were put within some milliseconds. If messages may not
// be committed yet, the listeners of the own store learn of them by NOTIFY as
// well: by the time it arrives, most transactions have committed.
type notifier struct {
	store *Store
	self  string // the payload that the listeners of this store ignore

	mu        sync.Mutex
	listeners map[*listener]struct{}
	channel   string // "": not looked up yet
	pending   pending
	running   bool // a goroutine sends what is pending
}

// pending is what a notifier still has to tell.
type pending struct {
	puts   bool // messages were put
	unsure bool // some of them may not be committed yet
	repeat bool // and may be committed only after the next NOTIFY
}

const (
	notifyGap   = 5 * time.Millisecond // between two NOTIFY
	notifyTries = 10                   // to find an idle connection
	notifyTime  = time.Second          // bounds a NOTIFY, and its arrival
)

const (
	// notifySQL is one statement, and so one round trip. Its commit does not
	// wait for the disk.
	notifySQL = `SELECT pg_notify($1, $2) WHERE set_config('synchronous_commit', 'off', true) = 'off'`

	// schemaSQL is the schema in which the search_path finds a table.
	schemaSQL = `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text)`
)

func newNotifier(s *Store) *notifier {
	return &notifier{store: s, self: rand.Text(), listeners: make(map[*listener]struct{})}
}

// notify reports that messages were put, and whether they are committed. It
// does not wait.
func (n *notifier) notify(committed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending.puts = true
	if committed {
		n.wakeLocked()
	} else {
		n.pending.unsure, n.pending.repeat = true, true
	}
	if !n.running {
		n.running = true
		go n.run()
	}
}

// wakeLocked wakes the listeners of this store. The caller holds the lock.
func (n *notifier) wakeLocked() {
	for l := range n.listeners {
		l.wake()
	}
}

func (n *notifier) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wakeLocked()
}

// run sends what is pending. If no connection of the pool is idle for long, it
// gives up: relays also look by themselves.
func (n *notifier) run() {
	for {
		payload, any := n.next()
		if !any {
			return
		}
		for sent, tries := false, notifyTries; !sent && tries > 0; tries-- {
			var err error
			if sent, err = n.trySend(payload); payload == unsurePayload && (!sent || err != nil) {
				n.wake()
			}
			time.Sleep(notifyGap)
		}
	}
}

// unsurePayload wakes all listeners, those of the own store as
// well.
const unsurePayload = "unsure"

// next returns the payload of the next NOTIFY. If there is none, run has to
// return.
func (n *notifier) next() (payload string, any bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	payload = n.self
	switch {
	case n.pending.puts:
		if n.pending.unsure {
			payload = unsurePayload
		}
		n.pending.puts, n.pending.unsure = false, false
	case n.pending.repeat:
		n.pending.repeat = false
		n.wakeLocked()
	default:
		n.running = false
	}
	return payload, n.running
}

// trySend sends a NOTIFY if a connection is idle, or can be opened. A NOTIFY
// that fails is not repeated.
func (n *notifier) trySend(payload string) (sent bool, err error) {
	if use := n.store.pool.Stat(); use.IdleConns() == 0 && use.TotalConns() >= use.MaxConns() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
	defer cancel()
	return true, n.send(ctx, payload)
}

// send sends a NOTIFY on a connection of the pool.
func (n *notifier) send(ctx context.Context, payload string) error {
	conn, err := n.store.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	channel, err := n.lookUpChannel(ctx, conn)
	if err != nil {
		return err
	}
	// pgx would prepare the statement first.
	values := [][]byte{[]byte(channel), []byte(payload)}
	return conn.Conn().PgConn().ExecParams(ctx, notifySQL, values, nil, nil, nil).Read().Err
}

// lookUpChannel returns the channel, which is the name of the outbox table. If
// the store names no schema, it asks where the search_path finds the table.
func (n *notifier) lookUpChannel(ctx context.Context, q querier) (string, error) {
	table := n.store.names.Outbox()
	if n.store.qualified {
		return channelOf(table), nil
	}
	n.mu.Lock()
	channel := n.channel
	n.mu.Unlock()
	if channel != "" {
		return channel, nil
	}
	var schema string
	switch err := q.QueryRow(ctx, schemaSQL, table).Scan(&schema); {
	case errors.Is(err, pgx.ErrNoRows):
		return "", fmt.Errorf("%w: there is no table %s: call Migrate", once.ErrInvalid, table)
	case err != nil:
		return "", err
	}
	channel = channelOf(schema + "." + table)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.channel = channel
	return channel, nil
}

const longestChannel = 63

// channelOf returns the channel of the outbox in a table. It is a digest if the
// name of the table is too long for PostgreSQL.
func channelOf(table string) string {
	name := strings.ReplaceAll(table, `"`, "")
	if len(name) > longestChannel {
		sum := sha256.Sum256([]byte(name))
		name = "once_" + hex.EncodeToString(sum[:16])
	}
	return name
}
