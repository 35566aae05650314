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

// bell tells ears that messages were put: those of its store at once if that is committed, all others by NOTIFY. That is
// never part of the transaction that puts, since PostgreSQL commits only one transaction with a NOTIFY at a time, and
// flushes its log under that lock. It follows in one of its own, which waits for no disk, for all that was put within some
// milliseconds. What is not committed yet the ears of its store hear of by that, too: on its way, most transactions commit.
type bell struct {
	store *Store
	self  string // marks what the ears of this bell's store were told before

	mu      sync.Mutex
	ears    map[*ear]struct{}
	channel string // empty: not asked for yet
	rung    bool   // there is something to tell
	early   bool   // some of it may still have to commit, and the ears of its store were not told
	again   bool   // and again a little later, for a transaction that may still have to commit
	running bool
}

const (
	bellGap   = 5 * time.Millisecond // between two NOTIFY
	bellTries = 10                   // to find a connection that nobody uses
	bellTime  = time.Second          // for one NOTIFY, and for it to arrive
)

const (
	// notifySQL is one statement and so one round trip, and its commit waits for no disk.
	notifySQL = `SELECT pg_notify($1, $2) WHERE set_config('synchronous_commit', 'off', true) = 'off'`

	// placeSQL is the schema that the search_path finds a table in.
	placeSQL = `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass($1::text)`
)

func newBell(s *Store) *bell {
	return &bell{store: s, self: rand.Text(), ears: make(map[*ear]struct{})}
}

// ring says that messages were put, and whether that is committed. It waits for nothing.
func (b *bell) ring(committed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if committed {
		b.wake()
	}
	b.rung, b.early, b.again = true, b.early || !committed, b.again || !committed
	if !b.running {
		b.running = true
		go b.run()
	}
}

// wake is called with the lock.
func (b *bell) wake() {
	for e := range b.ears {
		e.ring()
	}
}

func (b *bell) wakeNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake()
}

// run tells the ears elsewhere, until there is nothing to tell. If all connections of the pool are in use all the time,
// it gives up: relays look by themselves, too.
func (b *bell) run() {
	for {
		payload, any := b.next()
		if !any {
			return
		}
		for told, tries := false, bellTries; !told && tries > 0; tries-- {
			var err error
			if told, err = b.tell(payload); payload == unsure && (!told || err != nil) {
				b.wakeNow()
			}
			time.Sleep(bellGap)
		}
	}
}

// unsure is the payload of a NOTIFY that the ears of its store do not pass over.
const unsure = "unsure"

// next is what to tell, if there is anything; if not, run has ended.
func (b *bell) next() (payload string, any bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	payload = b.self
	switch {
	case b.rung:
		if b.early {
			payload = unsure
		}
		b.rung, b.early = false, false
	case b.again:
		b.again = false
		b.wake()
	default:
		b.running = false
	}
	return payload, b.running
}

// tell sends a NOTIFY, if there is a connection that nobody uses, or room for another. What fails is not repeated.
func (b *bell) tell(payload string) (told bool, err error) {
	if use := b.store.pool.Stat(); use.IdleConns() == 0 && use.TotalConns() >= use.MaxConns() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), bellTime)
	defer cancel()
	return true, b.notify(ctx, payload)
}

// notify sends a NOTIFY over the pool.
func (b *bell) notify(ctx context.Context, payload string) error {
	conn, err := b.store.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	channel, err := b.place(ctx, conn)
	if err != nil {
		return err
	}
	// Past pgx, which would prepare it first.
	values := [][]byte{[]byte(channel), []byte(payload)}
	return conn.Conn().PgConn().ExecParams(ctx, notifySQL, values, nil, nil, nil).Read().Err
}

// place is the channel: the name of the outbox's table. Without a schema it is where the search_path finds that.
func (b *bell) place(ctx context.Context, q querier) (string, error) {
	table := b.store.names.Outbox()
	if b.store.named {
		return channelOf(table), nil
	}
	b.mu.Lock()
	channel := b.channel
	b.mu.Unlock()
	if channel != "" {
		return channel, nil
	}
	var schema string
	switch err := q.QueryRow(ctx, placeSQL, table).Scan(&schema); {
	case errors.Is(err, pgx.ErrNoRows):
		return "", fmt.Errorf("%w: there is no table %s: call Migrate", once.ErrInvalid, table)
	case err != nil:
		return "", err
	}
	channel = channelOf(schema + "." + table)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.channel = channel
	return channel, nil
}

const longestChannel = 63

// channelOf is the channel on which the outbox in a table rings. A name that is too long for PostgreSQL is a digest.
func channelOf(table string) string {
	name := strings.ReplaceAll(table, `"`, "")
	if len(name) > longestChannel {
		sum := sha256.Sum256([]byte(name))
		name = "once_" + hex.EncodeToString(sum[:16])
	}
	return name
}
