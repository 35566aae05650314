package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

// keeper is a store with the capabilities for consumers and one bug, or none.
type keeper struct {
	*memstore.Store
	bug     string
	options *once.Options
	*notes
}

// notes is what the processes of a keeper share, besides the store.
type notes struct {
	mu       sync.Mutex
	keys     map[string]string         // the last Keys of each consumer
	set      map[string]bool           // consumers that SetPosition was called for
	answers  map[*memstore.Tx][]string // of the first BlockedTx
	rows     map[string]int            // all effects, committed or not
	looked   atomic.Int64              // calls that looked before they act
	shelving atomic.Int64              // calls of Shelve in progress
}

// hesitate lets other calls look before this one acts on what it has seen.
func (n *notes) hesitate() { n.await(2 * time.Second) }

// meet is like hesitate, but waits for another call, which is sure to come.
func (n *notes) meet() { n.await(testenv.Patience) }

func (n *notes) await(limit time.Duration) {
	n.looked.Add(1)
	for deadline := time.Now().Add(limit); n.looked.Load() < 2 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

func (k *keeper) has(bug string) bool { return k.bug == bug }

func (k *keeper) Options() *once.Options { return k.options }

// keeping returns the harness of a keeper.
func keeping(bug string) storetest.TxHarness[*memstore.Tx] {
	s := memstore.New(nil)
	n := newNotes()
	return inMemory(s, n, func() once.TxStore[*memstore.Tx] {
		return &keeper{Store: s, bug: bug, options: once.Options{}.Ready(), notes: n}
	})
}

func newNotes() *notes {
	return &notes{keys: make(map[string]string), set: make(map[string]bool), answers: make(map[*memstore.Tx][]string),
		rows: make(map[string]int)}
}

// inMemory returns the harness of stores that wrap one in memory.
func inMemory(s *memstore.Store, n *notes, open func() once.TxStore[*memstore.Tx]) storetest.TxHarness[*memstore.Tx] {
	return storetest.TxHarness[*memstore.Tx]{
		Open:     func(testing.TB) once.TxStore[*memstore.Tx] { return open() },
		Begin:    func(context.Context) (*memstore.Tx, error) { return s.Begin(), nil },
		Commit:   func(_ context.Context, tx *memstore.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *memstore.Tx) error { tx.Rollback(); return nil },
		Effect: func(_ context.Context, tx *memstore.Tx, name string) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			tx.Set(fmt.Sprint(name, "#", n.rows[name]), "")
			n.rows[name]++
			return nil
		},
		Count: func(_ context.Context, name string) (count int, err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			for i := range n.rows[name] {
				if _, ok := s.Value(fmt.Sprint(name, "#", i)); ok {
					count++
				}
			}
			return count, nil
		},
		SeesInFlight: true,
	}
}

func (k *keeper) Register(ctx context.Context, c store.Consumer) (store.Consumer, error) {
	if k.has("names without case") {
		c.Name = strings.ToLower(c.Name)
	}
	if k.has("any source") {
		k.share(ctx, &c)
	}
	if k.has("facts of the first time") {
		c.Source, _ = store.SplitSource(c.Source)
	}
	if k.has("shares with any source") && c.SharedWith != "" {
		k.share(ctx, &c)
	}
	if k.has("looks for a source, then registers") {
		all, _ := k.Store.Consumers(ctx)
		known := slices.ContainsFunc(all, func(other store.Consumer) bool { return other.Name == c.Name })
		k.hesitate()
		if !known {
			k.share(ctx, &c)
		}
	}
	if k.has("never shared") {
		c.SharedWith = ""
	}
	if k.has("looks, then registers") {
		all, _ := k.Store.Consumers(ctx)
		known := slices.ContainsFunc(all, func(other store.Consumer) bool { return other.Name == c.Name })
		k.hesitate()
		before, err := k.Store.Register(ctx, c)
		if !known {
			before = store.Consumer{}
		}
		return before, err
	}
	if k.has("looks, then renames") && strings.HasSuffix(c.Name, " b") {
		k.waitFor(1)
		defer k.looked.Add(1)
	}
	before, err := k.Store.Register(ctx, c)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case before == store.Consumer{}:
	case k.has("keys of the last time"):
		before.Keys = k.keys[c.Name]
	case k.has("empty keys stay empty") && before.Keys == before.Name:
		before.Keys = ""
	case k.has("no sign of life"):
		before.Seen = 0
	}
	k.keys[c.Name] = c.Keys
	return before, err
}

func (k *keeper) RenameConsumer(ctx context.Context, from, to string) error {
	all, _ := k.Store.Consumers(ctx)
	known := slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Name == to })
	switch {
	case k.has("renames only to new names") && known:
		return nil
	case k.has("looks, then renames") && !known:
		k.looked.Add(1)
		k.waitFor(2)
		if err := k.Store.RenameConsumer(ctx, from, to); !errors.Is(err, store.ErrConsumerState) {
			return err
		}
		return nil
	}
	err := k.Store.RenameConsumer(ctx, from, to)
	if k.has("refusals are swallowed") && errors.Is(err, store.ErrConsumerState) {
		return nil
	}
	if err == nil && k.has("renaming is a sign of life") {
		all, _ := k.Store.Consumers(ctx)
		for _, c := range all {
			_, _ = k.Store.Register(ctx, c)
		}
	}
	return err
}

func (k *keeper) RetireConsumer(ctx context.Context, r store.Retirement) error {
	all, _ := k.Store.Consumers(ctx)
	at := slices.IndexFunc(all, func(c store.Consumer) bool { return c.Name == r.Name })
	switch {
	case k.has("retired names are free") && at >= 0:
		return k.Store.RenameConsumer(ctx, r.Name, r.Name+" retired")
	case k.has("positions of retired ones stand") && at >= 0:
		stood, _ := k.Store.Positions(ctx, all[at].Keys)
		defer func() {
			for _, p := range stood {
				_ = k.Store.SetPosition(ctx, p)
			}
		}()
	}
	err := k.Store.RetireConsumer(ctx, r)
	if k.has("refusals are swallowed") && errors.Is(err, store.ErrConsumerState) {
		return nil
	}
	return err
}

// waitFor waits until a number of calls have looked, for a while.
func (n *notes) waitFor(calls int64) {
	for deadline := time.Now().Add(2 * time.Second); n.looked.Load() < calls && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// share registers a consumer whatever the source of its name.
func (k *keeper) share(ctx context.Context, c *store.Consumer) {
	all, _ := k.Store.Consumers(ctx)
	for _, other := range all {
		if other.Name == c.Name {
			c.SharedWith = other.Source
		}
	}
}

func (k *keeper) OpenPosition(ctx context.Context, consumer, partition string) (store.Position, error) {
	if k.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	p, err := k.Store.OpenPosition(ctx, consumer, partition)
	switch {
	case k.has("epochs from 0 on"):
		p.Epoch--
	case k.has("opening begins anew"):
		p = store.Position{Consumer: consumer, Partition: partition, Epoch: p.Epoch, Shelved: p.Shelved}
	}
	return k.spoil(p), err
}

func (k *keeper) SetPosition(ctx context.Context, p store.Position) error {
	k.mu.Lock()
	k.set[p.Consumer] = true
	k.mu.Unlock()
	return k.Store.SetPosition(ctx, p)
}

func (k *keeper) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	all, err := k.Store.Positions(ctx, consumer)
	for i := range all {
		all[i] = k.spoil(all[i])
	}
	if k.has("partitions in no order") {
		slices.Reverse(all)
	}
	return all, err
}

func (k *keeper) spoil(p store.Position) store.Position {
	switch k.bug {
	case "digest lost":
		p.Digest = [16]byte{}
	case "offsets as floats":
		p.Offset = int64(float64(p.Offset))
	case "always shelved":
		p.Shelved = true
	}
	return p
}

// row returns the row of a position.
func (k *keeper) row(ctx context.Context, at store.Position) store.Position {
	all, _ := k.Store.Positions(ctx, at.Consumer)
	for _, p := range all {
		if p.Partition == at.Partition {
			return p
		}
	}
	return at
}

func (k *keeper) TransactAt(ctx context.Context, from, to store.Position, body func(*memstore.Tx) error) error {
	is := k.row(ctx, from)
	k.mu.Lock()
	set := k.set[from.Consumer]
	k.mu.Unlock()
	commit := func(tx *memstore.Tx, err error) error { return errors.Join(err, tx.Commit()) }
	ran := false
	run := func(tx *memstore.Tx) error { ran = true; return body(tx) }
	switch {
	case k.has("no fence"), k.has("SetPosition fences nobody") && set:
		from.Epoch, to.Epoch = is.Epoch, is.Epoch
	case k.has("moves from anywhere") && is.Epoch == from.Epoch && is.Log != "" && is.Offset != to.Offset:
		from = is
	case k.has("rows in a commit of their own"):
		if err := k.Store.TransactAt(ctx, from, to, func(*memstore.Tx) error { ran = true; return nil }); err != nil || !ran {
			return err
		}
		tx := k.Begin()
		return commit(tx, body(tx))
	case k.has("commits on a panic"):
		return k.Store.TransactAt(ctx, from, to, func(tx *memstore.Tx) (err error) {
			finished := false
			defer func() {
				if v := recover(); v == nil && !finished {
					other := k.Begin()
					_ = commit(other, body(other))
				}
			}()
			err = body(tx)
			finished = true
			return err
		})
	case k.has("looks, then moves") && is.Offset == from.Offset && is.Log == from.Log:
		k.hesitate()
		tx := k.Begin()
		if err := commit(tx, body(tx)); err != nil {
			return err
		}
		_ = k.Store.TransactAt(ctx, from, to, func(*memstore.Tx) error { return nil })
		return nil
	case k.has("context ignored"):
		ctx = context.WithoutCancel(ctx)
	case k.has("ends with its context"):
		run = func(tx *memstore.Tx) error { ran = true; return errors.Join(body(tx), ctx.Err()) }
	case k.has("error of the body flattened"):
		run = func(tx *memstore.Tx) error {
			if err := body(tx); err != nil {
				return errors.New(err.Error())
			}
			return nil
		}
	}
	err := k.Store.TransactAt(ctx, from, to, run)
	switch {
	case err == nil && !ran && k.has("repeat taken for lost"):
		return once.ErrLeaseLost
	case err == nil && !ran && k.has("repeat runs again"):
		tx := k.Begin()
		return commit(tx, body(tx))
	case errors.Is(err, once.ErrConflict) && k.has("conflict taken for lost"):
		return once.ErrLeaseLost
	}
	return err
}

func (k *keeper) ClaimTx(ctx context.Context, tx *memstore.Tx, rs []once.ClaimRequest) ([]once.Record, error) {
	if !k.has("keys in a commit of their own") {
		return k.Store.ClaimTx(ctx, tx, rs)
	}
	other := k.Begin()
	recs, err := k.Store.ClaimTx(ctx, other, rs)
	return recs, errors.Join(err, other.Commit())
}

// aside changes a message on its way to the shelf, if the bug is there.
func (k *keeper) aside(m store.Shelved) store.Shelved {
	switch k.bug {
	case "bodies made texts":
		m.Message.Body = bytes.ToValidUTF8(m.Message.Body, []byte("?"))
	case "headers made texts":
		m.Message.Header = maps.Clone(m.Message.Header)
		for name, value := range m.Message.Header {
			m.Message.Header[name] = strings.ToValidUTF8(value, "?")
		}
	case "bodies cut at 1 MiB":
		m.Message.Body = m.Message.Body[:min(len(m.Message.Body), 1<<20)]
	case "due at once":
		m.Due = 0
	case "key lost":
		m.Key = ""
	}
	return m
}

func (k *keeper) asides(ms []store.Shelved) []store.Shelved {
	all := make([]store.Shelved, len(ms))
	for i, m := range ms {
		all[i] = k.aside(m)
	}
	if k.has("put aside backwards") {
		slices.Reverse(all)
	}
	return all
}
