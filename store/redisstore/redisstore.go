// Package redisstore is a store in Redis, through go-redis: one server, one with
// replicas and Sentinel, or a cluster.
//
// # What it implements
//
// A [Store] is a [once.TxStore], so it works with [once.Do], and with [once.DoTx]
// for what is in Redis: a [Tx] collects commands that run together with the claim
// and the outcome. It is also a [once.Lister] of what is not done, a
// [store.Reopener], for consumers a [store.Registry], a [store.TxShelf] and
// [store.Positions], and a [store.Outbox] whose relays are woken by a stream. A key
// does not commit together with rows of another database: for that, keep it there.
//
// # How keys are stored
//
// A record is a hash, and its outcome, with a copy of the record, a string. Each
// call is one script, so it is atomic and takes one round trip, and the clock is the
// server's. While there are many duplicates, they are answered by GETEX of the
// outcome alone. Redis drops a record at the end of its KeepKey and an outcome at
// the end of its KeepOutcome, so Forget has nothing to do. Records that are Running,
// Unknown or Parked never expire. The digest of a key decides on one of 256
// partitions. All Redis keys of a partition share a hash tag, so a cluster
// spreads them over its nodes, unless [Options.Slot] puts all into one slot.
//
// # What it needs, and what Redis can lose
//
// The maxmemory-policy has to be noeviction, which is checked at the first call,
// every minute, and after a lost connection: any other lets Redis drop a key early, and its work would run again. Where memory
// is full, claims fail, and work that has begun is still recorded.
//
// A claim is as durable as the server makes it. With appendfsync everysec, the
// default of the append-only file, a crash of the machine loses the last second
// or two; without that file, everything since the last snapshot. A failover
// loses what the replica had not received yet, unless [Options.Replicas] makes
// calls wait for it. A lost key means that its work may run again.
// docs/stores/redis.md has a table of what each setting can lose.
//
// The clocks of a server and its replicas have to agree, and must not step. If
// the clock jumps forward, also in a failover, leases end and keys are forgotten
// early. If it jumps back, an outcome that Redis has dropped is [once.ErrCorrupt]
// until its KeepOutcome ends. Replicas must be read-only, the default, because a
// replica that accepts writes accepts claims.
//
// While a cluster moves a slot, calls for its keys fail with TRYAGAIN, and so
// does List. A lease has to be longer than such a move.
//
// A server with a smaller proto-max-bulk-len than the default of 512 MB closes the
// connection at a larger outcome, which then is never recorded: keep MaxOutcome
// below it.
//
// The user of the client needs the commands EVAL, EVALSHA, INFO, TIME, ZCARD and
// ZRANGE, and those of the scripts: DEL, GET, GETEX, HDEL, HGETALL, HSET, PERSIST, PEXPIREAT,
// SET, ZADD and ZREM. Consumers and the outbox need EXISTS, HGET, HMGET,
// XADD, XREAD, XREVRANGE and ZRANGEBYLEX besides.
//
// # Compatibility
//
// As package once. The package needs Redis 5 or newer.
package redisstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/lossrate"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
	"github.com/redis/go-redis/v9"
)

// Options configures a Store. The zero value is valid.
type Options struct {
	once.Options

	// Prefix begins the names of all keys in Redis. Stores with different prefixes
	// share nothing. Default: "once:".
	Prefix string

	// Replicas is how many replicas have to have what a call wrote or read before
	// it returns. If fewer confirm it within ConfirmTimeout, the call returns an
	// error, and may or may not have been applied. Default: none.
	Replicas int

	// Synced requires in addition that it is on disk, in the append-only file of the
	// server and of those replicas. It needs Redis 7.2.
	Synced bool

	// ConfirmTimeout is how long a call waits for Replicas and Synced. It must be
	// shorter than the ReadTimeout of the client. Default: one second.
	ConfirmTimeout time.Duration

	// Slot puts all keys of the store into one slot of a cluster: that of keys with
	// this text in braces. Transactions in a cluster need it, because a script runs
	// on one server, and their commands name keys with the same tag. A store keeps its
	// Slot for ever. Default: the keys are spread, and a cluster has no transactions.
	Slot string

	// ClaimFirst makes Transact write its claims before it calls its body, at the
	// price of another write. Such a claim is not extended: Policy.Lease must be longer
	// than the body takes, or calls of one key keep each other from committing.
	// Default: of several transactions at once on a key, each calls its body, and one
	// commits.
	ClaimFirst bool
}

// Store is a store in Redis. It is safe for concurrent use.
type Store struct {
	cas.Consuming[*Tx]
	*cas.Publishing[*Tx]

	client       redis.UniversalClient
	options      *once.Options
	prefix       string
	slot         string
	confirm      confirmation
	scripts      *scripts
	clock        *cas.LearnedClock
	invalid      error
	transactions *cas.Transactions[*Tx]

	lost    lossrate.Rate // claims that met a finished key
	noGetEx atomic.Bool   // the server does not have it for this user: it is older than Redis 6.2, or its rules are
	checked atomic.Int64  // when the servers were last seen to keep what they have, by sinceStart; 0: to be checked
}

var (
	_ once.TxStore[*Tx]    = (*Store)(nil)
	_ once.Lister          = (*Store)(nil)
	_ store.Reopener       = (*Store)(nil)
	_ store.Registry       = (*Store)(nil)
	_ store.TxShelf[*Tx]   = (*Store)(nil)
	_ store.Positions[*Tx] = (*Store)(nil)
	_ store.Outbox[*Tx]    = (*Store)(nil)
	_ store.Bell           = (*Store)(nil)
)

// New returns a store. A nil Options means the defaults. The client remains the
// caller's. It may repeat a command whose reply was lost, which changes nothing.
func New(client redis.UniversalClient, o *Options) *Store {
	if o == nil {
		o = new(Options)
	}
	s := &Store{client: client, options: o.Options.Ready(), prefix: cmp.Or(o.Prefix, "once:"), scripts: &plainScripts,
		slot: o.Slot, clock: new(cas.LearnedClock),
		confirm: confirmation{replicas: o.Replicas, synced: o.Synced, timeout: cmp.Or(o.ConfirmTimeout, time.Second)}}
	if s.confirm.needed() {
		s.scripts = &confirmedScripts
	}
	s.clock.Ask = s.askTime
	e := engine{s}
	s.transactions = &cas.Transactions[*Tx]{Store: cas.New(e, s.clock, s.options), Engine: e, ClaimFirst: o.ClaimFirst}
	s.Consuming = cas.Consuming[*Tx]{Shelving: cas.Shelving[*Tx]{Transactions: s.transactions, Docs: e, MaxDoc: maxDoc}}
	s.Publishing = &cas.Publishing[*Tx]{Transactions: s.transactions, Queue: e, MaxDoc: maxDoc}
	_, ring := client.(*redis.Ring)
	switch {
	case client == nil:
		s.invalid = fmt.Errorf("%w: redisstore: the client is nil", once.ErrInvalid)
	case ring:
		s.invalid = fmt.Errorf("%w: redisstore: a Ring looks for a key on another server when one is down, and finds it new: "+
			"use a cluster", once.ErrInvalid)
	case strings.ContainsAny(s.prefix+s.slot, "{}"):
		s.invalid = fmt.Errorf("%w: redisstore: the prefix %q or the slot %q has a brace, which Redis would take for a hash tag",
			once.ErrInvalid, s.prefix, s.slot)
	default:
		s.invalid = s.confirm.check(client)
	}
	return s
}

// Options returns the options of the store.
func (s *Store) Options() *once.Options { return s.options }

// Claim takes a key if it is free, and otherwise returns the record that is in
// the way. While many claims are duplicates, it looks for a finished one first.
func (s *Store) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	if rec, ok := s.duplicate(ctx, r.Key); ok {
		s.lost.Count(true)
		return rec, nil
	}
	defer func() { s.lost.Count(err == nil && rec.Status == once.Done) }()
	id := r.Key.UUID()
	return s.record(ctx, s.scripts.claim, id, r.Owner[:], r.Attempt, r.Lease.Microseconds(), digest(id), r.Fingerprint, cause(r.Cause),
		r.Key.Scope, r.Key.Operation, r.Key.ID)
}

// Get returns the record of a key as it is now.
func (s *Store) Get(ctx context.Context, k once.Key) (once.Record, error) {
	return s.record(ctx, s.scripts.get, k.UUID())
}

// Extend sets the lease to end d from now.
func (s *Store) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	return s.change(ctx, s.scripts.extend, fence, d.Microseconds())
}

// cause is that of a claim, or "" if it has none.
func cause(of [16]byte) string {
	if of == [16]byte{} {
		return ""
	}
	return string(of[:])
}

// maxBody is proto-max-bulk-len as servers have it by default. A server closes
// the connection at more, and its error may not arrive.
const maxBody = 512 << 20

// Settle ends an attempt.
func (s *Store) Settle(ctx context.Context, set once.Settlement) error {
	if set.Status == once.Running || set.Status < once.Absent || set.Status > once.Done {
		return fmt.Errorf("%w: an attempt does not end as %v", once.ErrInvalid, set.Status)
	}
	out := set.Outcome
	if len(out.Body) > maxBody {
		return errTooLarge(out)
	}
	return s.change(ctx, s.scripts.settle, set.Fence, int(set.Status), set.Reason, set.KeepOutcome.Microseconds(),
		set.KeepKey.Microseconds(), digest(set.Key.UUID()), out.ContentType, flags(out), out.Sum, out.Body)
}

func errTooLarge(out once.Outcome) error {
	return fmt.Errorf("%w: redisstore: its body has %d bytes, and Redis takes %d together with the record", once.ErrOutcomeRefused, len(out.Body), maxBody)
}

// Reopen frees the key of a Done or Expired record.
func (s *Store) Reopen(ctx context.Context, fence once.Fence, keepKey time.Duration, reason string) error {
	return s.change(ctx, s.scripts.reopen, fence, reason, keepKey.Microseconds())
}

// Forget returns 0, because Redis itself drops what is past its time.
func (s *Store) Forget(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		return 0, fmt.Errorf("%w: Forget with a limit of %d: give at least 1", once.ErrInvalid, limit)
	}
	return 0, s.ready(ctx)
}

// record runs a script that returns a record.
func (s *Store) record(ctx context.Context, script *redis.Script, id [16]byte, args ...any) (rec once.Record, err error) {
	if err := s.ready(ctx); err != nil {
		return rec, err
	}
	row, err := s.run(ctx, script, s.keys(id), args...).StringSlice()
	if err != nil {
		s.checkAgain(err)
		return rec, explain(err)
	}
	return readRecord(row, id)
}

// change runs a script that changes the record of a fence, and tells whether it
// is current.
func (s *Store) change(ctx context.Context, script *redis.Script, fence once.Fence, args ...any) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	args = append([]any{fence.Owner[:], fence.Attempt}, args...)
	held, err := s.run(ctx, script, s.keys(fence.Key.UUID()), args...).Bool()
	switch {
	case err != nil:
		s.checkAgain(err)
		return explain(err)
	case !held:
		return fmt.Errorf("%w: attempt %d of %s %q is not the current one, or has ended", once.ErrLeaseLost, fence.Attempt,
			fence.Key.Operation, fence.Key.ID)
	}
	return nil
}

// partitions is how many there are. The first byte of a digest is the number of
// its partition, so their order is that of the digests.
const partitions = 256

// keys are the keys of a script: the record, its outcome, and the open records.
func (s *Store) keys(id [16]byte) []string {
	record := s.partition(int(id[0])) + digest(id)
	return []string{record, record + ":outcome", s.open(int(id[0]))}
}

func (s *Store) open(partition int) string { return s.partition(partition) + "open" }

func (s *Store) partition(n int) string {
	if s.slot != "" {
		return fmt.Sprintf("%s{%s}%02x:", s.prefix, s.slot, n)
	}
	return fmt.Sprintf("%s{%02x}:", s.prefix, n)
}

func digest(id [16]byte) string { return hex.EncodeToString(id[:]) }

// damages are parts of the errors of scripts that read what none of them wrote.
var damages = []string{"damaged record", "WRONGTYPE ", "attempt to compare nil", "attempt to perform arithmetic on a nil", "bad argument #",
	"invalid value (nil)"}

// explain names the errors of the contract.
func explain(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "invalid bulk length"):
		return fmt.Errorf("%w: %w", once.ErrOutcomeRefused, err)
	case slices.ContainsFunc(damages, func(part string) bool { return strings.Contains(text, part) }):
		return fmt.Errorf("%w: %w", once.ErrCorrupt, err)
	}
	return err
}

// checkEvery is how long an answer of a server about its settings holds. Another
// server may take over without a call noticing it, because the client repeats
// commands.
const checkEvery = time.Minute

var start = time.Now()

// sinceStart is the time since the process started, and a little more than 0.
func sinceStart() int64 { return int64(time.Since(start)) + 1 }

// ready checks that no server drops keys to make room.
func (s *Store) ready(ctx context.Context) error {
	at := s.checked.Load()
	if err := errors.Join(s.invalid, ctx.Err()); err != nil || at > 0 && sinceStart()-at < int64(checkEvery) {
		return err
	}
	check := func(ctx context.Context, c redis.Cmdable) error {
		info, err := c.Info(ctx, "memory").Result()
		if err != nil {
			return fmt.Errorf("redisstore: ask for the maxmemory-policy: %w", err)
		}
		return checkPolicy(info)
	}
	var err error
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return check(ctx, c) })
	} else {
		err = check(ctx, s.client)
	}
	if err == nil {
		s.checked.Store(sinceStart())
	}
	return err
}

// checkAgain has the next call check the server, after an error that is not an
// answer of a script: another server may have taken over.
func (s *Store) checkAgain(err error) {
	var answer redis.Error
	if !errors.As(err, &answer) || redis.HasErrorPrefix(err, "READONLY") {
		s.checked.Store(0)
	}
}

// checkPolicy reads the section "memory" of INFO.
func checkPolicy(info string) error {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "maxmemory_policy" {
			continue
		}
		if value != "noeviction" {
			return fmt.Errorf("%w: redisstore: the maxmemory-policy of the server is %s, with which it may drop a key, whose work "+
				"then runs again: set it to noeviction", once.ErrInvalid, value)
		}
		return nil
	}
	return fmt.Errorf("%w: redisstore: the server does not tell its maxmemory-policy", once.ErrInvalid)
}

const (
	flagRejected = 1 << iota
	flagOmitted
)

func flags(out once.Outcome) (flags int) {
	if out.Rejected {
		flags |= flagRejected
	}
	if out.Omitted {
		flags |= flagOmitted
	}
	return flags
}

// readRecord reads what the scripts return.
func readRecord(row []string, id [16]byte) (rec once.Record, err error) {
	const columns = 18
	if len(row) != columns {
		return rec, fmt.Errorf("%w: a script returned %d values", once.ErrCorrupt, len(row))
	}
	number := func(text string) int64 {
		n, failed := strconv.ParseInt(text, 10, 64)
		if failed != nil && err == nil {
			err = fmt.Errorf("%w: a record has %q for a number", once.ErrCorrupt, text)
		}
		return n
	}
	rec = once.Record{
		Status: once.Status(number(row[0])), Attempt: number(row[1]), Reason: row[10],
		Key: once.Key{Scope: row[13], Operation: row[14], ID: row[15]},
	}
	if rec.Attempt == 0 {
		return once.Record{}, err
	}
	rec.Age = time.Duration(number(row[4])) * time.Microsecond
	rec.Created, rec.Updated = time.UnixMicro(number(row[11])), time.UnixMicro(number(row[12]))
	if row[5] != "" {
		rec.Fingerprint = []byte(row[5])
	}
	copy(rec.Cause[:], row[6])
	left := time.Duration(number(row[3])) * time.Microsecond
	switch rec.Status {
	case once.Running:
		rec.LeaseLeft = left
	case once.Unknown:
		rec.LeaseLeft = min(left, -time.Microsecond) // 0 would mean that it is not known
	case once.Done:
		f := number(row[8])
		rec.Outcome = once.Outcome{Body: []byte(row[16]), ContentType: row[7], Rejected: f&flagRejected != 0,
			Omitted: f&flagOmitted != 0, Sum: uint32(number(row[9]))}
		rec.OutcomeLeft = time.Duration(number(row[17])) * time.Microsecond
	}
	if rec.Status != once.Absent {
		copy(rec.Owner[:], row[2])
	}
	if rec.Key.UUID() != id && err == nil {
		err = fmt.Errorf("%w: the record %x has the parts of another key: %q, %q, %q", once.ErrCorrupt, id, rec.Key.Scope,
			rec.Key.Operation, rec.Key.ID)
	}
	return rec, err
}
