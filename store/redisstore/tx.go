package redisstore

import (
	"context"
	"crypto/rand"
	"encoding"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
	"github.com/redis/go-redis/v9"
)

// Tx is a transaction. It collects commands by the methods of a
// [redis.Pipeliner], and its commit runs them in one script, together with the
// claims and settlements. So no command has a result, and what a transaction reads
// through the client may have changed when it commits.
//
// Redis does not undo commands. If the first one fails, for example with WRONGTYPE,
// nothing was applied. If a later one fails, those before it stay applied, those
// after it are not run, the keys of the transaction are parked with a reason that
// says so, and the error is [once.ErrParked].
type Tx struct {
	commands
	store   *Store
	managed bool // Transact ends it
	ended   bool
	changes cas.Changes
}

// commands has no exported name, so that nobody runs them past the transaction.
type commands = redis.Pipeliner

var _ redis.Pipeliner = (*Tx)(nil)

// Begin returns a transaction that the caller ends, for ClaimTx, SettleTx and
// [once.InTx].
func (s *Store) Begin() *Tx { return &Tx{commands: s.client.Pipeline(), store: s} }

// Commit runs the commands of the transaction, and writes its claims and
// settlements, all at once. [once.ErrConflict] means that nothing was applied,
// because a key has changed since the transaction read it, and
// [once.ErrOutcomeUnknown] that it is not known. In the body of Transact, Commit
// returns an error.
func (tx *Tx) Commit(ctx context.Context) error {
	if tx.managed {
		return fmt.Errorf("%w: this transaction is committed when its body returns nil", once.ErrInvalid)
	}
	return tx.store.commit(ctx, tx)
}

// Rollback drops the transaction. After its end, and in the body of Transact, it
// does nothing.
func (tx *Tx) Rollback() {
	if !tx.managed {
		tx.ended = true
	}
}

// Exec returns an error, because the commands run when the transaction commits.
func (tx *Tx) Exec(context.Context) ([]redis.Cmder, error) {
	return nil, fmt.Errorf("%w: the commands of a transaction run when it commits", once.ErrInvalid)
}

// Pipelined adds the commands of f to the transaction.
func (tx *Tx) Pipelined(_ context.Context, f func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	before := tx.Len()
	err := f(tx)
	return slices.Clone(tx.Cmds()[min(before, tx.Len()):]), err
}

// TxPipelined is Pipelined, because a transaction is one already.
func (tx *Tx) TxPipelined(ctx context.Context, f func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return tx.Pipelined(ctx, f)
}

// Pipeline returns the transaction.
func (tx *Tx) Pipeline() redis.Pipeliner { return tx }

// TxPipeline returns the transaction.
func (tx *Tx) TxPipeline() redis.Pipeliner { return tx }

// Transact claims, calls body, settles and commits. It reads the keys first, and
// writes nothing before its commit, unless [Options.ClaimFirst] is set. While many
// keys are duplicates, a single one is looked up as Claim does.
func (s *Store) Transact(ctx context.Context, rs []once.ClaimRequest, body func(*Tx, []once.Record) ([]once.Settlement, error)) (
	[]once.Record, error) {

	if err := s.readyForTx(ctx); err != nil {
		return nil, err
	}
	if len(rs) == 1 {
		if rec, ok := s.duplicate(ctx, rs[0].Key); ok {
			s.lost.Count(true)
			return []once.Record{rec}, nil
		}
	}
	recs, err := s.transactions.Transact(ctx, rs, body)
	if err == nil {
		for _, rec := range recs {
			s.lost.Count(rec.Status == once.Done)
		}
	}
	return recs, err
}

// ClaimTx claims in the caller's transaction. The claims are written by its
// Commit, which is refused if a key has changed meanwhile.
func (s *Store) ClaimTx(ctx context.Context, tx *Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	if err := s.readyForTx(ctx); err != nil {
		return nil, err
	}
	return s.transactions.ClaimTx(ctx, tx, rs)
}

// SettleTx settles in the caller's transaction.
func (s *Store) SettleTx(ctx context.Context, tx *Tx, sets []once.Settlement) error {
	if err := s.readyForTx(ctx); err != nil {
		return err
	}
	return s.transactions.SettleTx(ctx, tx, sets)
}

func (s *Store) readyForTx(ctx context.Context) error {
	if err := s.checkSlot(); err != nil {
		return err
	}
	return s.ready(ctx)
}

// checkSlot refuses a transaction whose keys are on several servers.
func (s *Store) checkSlot() error {
	if _, cluster := s.client.(*redis.ClusterClient); cluster && s.slot == "" {
		return fmt.Errorf("%w: redisstore: a transaction in a cluster needs all its keys in one slot: set Options.Slot", once.ErrInvalid)
	}
	return nil
}

// maxArguments is how many arguments a command may have: Lua has a limit near 8,000.
const maxArguments = 7000

// notInScripts are commands that a script cannot run, that change what the
// commands after them mean, or that delete the keys of the store.
var notInScripts = []string{"acl", "asking", "auth", "bgrewriteaof", "bgsave", "blmove", "blpop", "brpop", "brpoplpush", "bzpopmax", "bzpopmin",
	"client", "cluster", "config", "debug", "discard", "eval", "eval_ro", "evalsha", "evalsha_ro", "exec", "failover", "fcall", "fcall_ro",
	"flushall", "flushdb", "function", "hello", "latency", "migrate", "module", "monitor", "multi", "psubscribe", "psync", "punsubscribe",
	"quit", "readonly", "readwrite", "replconf", "replicaof", "reset", "role", "save", "script", "select", "shutdown", "slaveof",
	"slowlog", "ssubscribe", "subscribe", "sunsubscribe", "swapdb", "sync", "unsubscribe", "unwatch", "wait", "waitaof", "watch"}

// arguments returns the arguments of a command, each of which the client can
// write. It would find out while it sends them, and not tell that from a lost
// reply.
func arguments(cmd redis.Cmder) ([]any, error) {
	args := slices.Clone(cmd.Args())
	for i, arg := range args {
		switch arg := arg.(type) {
		case time.Time, *time.Time: // the client writes them as text
		case encoding.BinaryMarshaler:
			text, err := arg.MarshalBinary()
			if err != nil {
				return nil, fmt.Errorf("%w: redisstore: argument %d of %s: %w", once.ErrInvalid, i, nameOf(args), err)
			}
			args[i] = text
		}
	}
	return args, nil
}

// nameOf returns the name of a command.
func nameOf(args []any) string { return redis.NewCmd(context.Background(), args[0]).Name() }

// checkCommand refuses what would fail only after the commands before it were
// applied.
func (s *Store) checkCommand(cmd redis.Cmder) (args []any, err error) {
	_, cluster := s.client.(*redis.ClusterClient)
	isInSlot := func(arg any) bool {
		text, ok := arg.(string)
		return ok && strings.Contains(text, "{"+s.slot+"}")
	}
	switch n := len(cmd.Args()); {
	case cmd.Err() != nil:
		return nil, fmt.Errorf("%w: redisstore: %s: %w", once.ErrInvalid, cmd.Name(), cmd.Err())
	case n == 0 || n > maxArguments:
		return nil, fmt.Errorf("%w: redisstore: a command of a transaction has %d arguments: give 1 to %d", once.ErrInvalid, n, maxArguments)
	}
	if args, err = arguments(cmd); err != nil {
		return nil, err
	}
	switch name := nameOf(args); {
	case slices.Contains(notInScripts, name):
		return nil, fmt.Errorf("%w: redisstore: %s does not run in a transaction of the store, which is a script", once.ErrInvalid, name)
	case cluster && !slices.ContainsFunc(args, isInSlot):
		return nil, fmt.Errorf("%w: redisstore: %s names no key with {%s}, so it may belong to another server than the keys of the store",
			once.ErrInvalid, name, s.slot)
	}
	return args, nil
}

// commit ends a transaction.
func (s *Store) commit(ctx context.Context, tx *Tx) error {
	if err := tx.use(s); err != nil {
		return err
	}
	tx.ended = true
	var cmds [][]any
	for _, cmd := range tx.Cmds() {
		args, err := s.checkCommand(cmd)
		if err != nil {
			return err
		}
		cmds = append(cmds, args)
	}
	changes := tx.changes.All()
	docs := tx.changes.Docs()
	if len(cmds)+len(changes)+len(docs) == 0 {
		return nil
	}
	if len(docs) > 0 && len(cmds)+len(changes) > 0 {
		if err := s.checkSlot(); err != nil {
			return err
		}
	}
	return s.write(ctx, changes, docs, cmds, rand.Text())
}

// use returns an error if the transaction has ended, or is of a store of other
// records.
func (tx *Tx) use(s *Store) error {
	if tx == nil || tx.ended || tx.store != s && !tx.store.isAs(s) {
		return fmt.Errorf("%w: the transaction has ended, or is of another store: begin one", once.ErrInvalid)
	}
	return nil
}

// isAs reports whether two stores have the same records.
func (s *Store) isAs(other *Store) bool {
	name := servers(s.client)
	return s.prefix == other.prefix && s.slot == other.slot && (s.client == other.client || name != "" && name == servers(other.client))
}

// servers says which database a client is of, or "" if that is not known.
func servers(client redis.UniversalClient) string {
	switch client := client.(type) {
	case *redis.Client:
		if client.Options().Addr == "FailoverClient" { // so go-redis names every client that asks Sentinels
			return ""
		}
		return fmt.Sprintf("%s %d", client.Options().Addr, client.Options().DB)
	case *redis.ClusterClient:
		return fmt.Sprint(slices.Sorted(slices.Values(client.Options().Addrs)))
	}
	return ""
}

// write runs the commands and writes the changes and documents, all at once. rev is
// new for each call.
func (s *Store) write(ctx context.Context, changes []cas.Change, docs []cas.DocChange, cmds [][]any, rev string) error {
	var keys []string
	args := []any{len(changes)}
	for _, c := range changes {
		without := c.Is
		without.Outcome.Body = nil
		if len(withFields(without))+len(c.Is.Outcome.Body) > maxBody { // they are one argument
			return errTooLarge(c.Is.Outcome)
		}
		keys = append(keys, s.keys(c.Is.Key.UUID())...)
		args = appendRow(append(args, c.Was.Version), c.Is, rev)
	}
	args = append(args, rev, len(docs))
	for _, d := range docs {
		keys = append(keys, s.docKey(d.Name))
		args = appendDoc(args, d)
	}
	if len(docs) > 0 {
		keys = append(keys, s.indexKey(), s.bellKey())
	}
	if len(keys) == 0 {
		keys = []string{s.partition(0) + "none"} // which only says where the script runs
	}
	args = append(args, len(cmds))
	for _, cmd := range cmds {
		args = append(append(args, len(cmd)), cmd...)
	}
	reply, err := s.runOnce(ctx, s.scripts.commit, keys, args).StringSlice()
	if err != nil {
		s.checkAgain(err)
		return explainCommit(err)
	}
	switch reply[0] {
	case "stale":
		return fmt.Errorf("%w: redisstore: a key or document of the transaction has changed since it was read, so nothing was applied", once.ErrConflict)
	case "undone":
		return fmt.Errorf("redisstore: the first command (%s) failed, so nothing was applied: %s", nameOf(cmds[0]), reply[1])
	case "parked":
		return fmt.Errorf("%w: redisstore: %s", once.ErrParked, reply[1])
	}
	return nil
}

// onceOnly commands are not sent again by the client, which would not tell
// whether the first time had an effect.
type onceOnly struct{ *redis.Cmd }

func (onceOnly) NoRetry() bool { return true }

// runOnce runs a script that must not be repeated.
func (s *Store) runOnce(ctx context.Context, script onceScript, keys []string, args []any) *redis.Cmd {
	send := func(how, text string) *redis.Cmd {
		all := []any{how, text, len(keys)}
		for _, key := range keys {
			all = append(all, key)
		}
		cmd := redis.NewCmd(ctx, append(all, args...)...)
		if s.confirm.needed() {
			return s.confirmed(ctx, keys[0], func(p redis.Pipeliner) *redis.Cmd {
				_ = p.Process(ctx, onceOnly{cmd})
				return cmd
			})
		}
		_ = s.client.Process(ctx, onceOnly{cmd}) // cmd has the error
		return cmd
	}
	cmd := send("evalsha", script.hash)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = send("eval", script.text)
	}
	return cmd
}

// explainCommit names the errors of the contract, for a commit that was sent
// once.
func explainCommit(err error) error {
	var answer redis.Error
	var op *net.OpError
	has := func(prefixes ...string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) })
	}
	switch explained := explain(err); {
	case errors.Is(err, errUnconfirmed):
	case errors.As(err, &answer) && has("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"): // another server takes over
		return fmt.Errorf("%w: %w", once.ErrConflict, err)
	case errors.As(err, &answer) && has("OOM", "NOREPLICAS", "NOAUTH", "NOPERM", "BUSY", "MISCONF", "MOVED", "ASK", "CROSSSLOT"):
		return err
	case errors.Is(explained, once.ErrOutcomeRefused), errors.Is(explained, once.ErrCorrupt):
		return explained
	case strings.HasPrefix(err.Error(), "redis: can't marshal "): // the client has sent no whole command
		return fmt.Errorf("%w: %w", once.ErrInvalid, err)
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrClosed): // not sent
		return err
	}
	return fmt.Errorf("%w: %w", once.ErrOutcomeUnknown, err)
}
