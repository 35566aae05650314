package history

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/faults/engine"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/models"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
)

// TestPositionsFollowTheModel checks that each change of a position in a real
// database, and of the shelf beside it, is one that the model positions.pml makes.
// Consumers fail messages, are stopped and take partitions over from each other, and a
// person decides about what is parked. Writes come one after the other here, so that
// each is seen.
func TestPositionsFollowTheModel(t *testing.T) {
	seed := proof.Seed(t)
	engine.OnEach(t, func(t *testing.T, e engine.Engine) {
		d, _ := e.Migrated(t)
		d.MustExec(t, effectTable)
		if e.Name == engine.PGStore {
			followPositions(t, d, seed, func(ctx context.Context, tx pgx.Tx, statement string) error {
				_, err := tx.Exec(ctx, statement)
				return err
			})
			return
		}
		followPositions(t, d, seed, func(ctx context.Context, tx *sql.Tx, statement string) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		})
	}, engine.SQLite, engine.Postgres, engine.PGStore)
}

func followPositions[T any](t *testing.T, d *engine.Database, seed uint64, exec func(context.Context, T, string) error) {
	w := &placeWatch[T]{model: models.NewPosition(false)}
	c := &placeCrew[T]{T: t, seed: seed, tried: make(map[string]int), topic: membroker.New(nil)}
	over := func(name string) *watchedPlaces[T] { return watchPlaces(t, d.Store, w, name) }
	c.write = func(ctx context.Context, s *watchedPlaces[T], tx T, m *broker.Message) error {
		if err := exec(ctx, tx, fmt.Sprintf("INSERT INTO effect (name, value) VALUES ('%s', 1)", m.ID)); err != nil {
			return err
		}
		s.effects = append(s.effects, *m)
		return nil
	}
	const n = 40
	source := c.topic.Log("orders", crewName, 2) // before the first message
	for i := range n {
		m := broker.Message{ID: fmt.Sprintf("m%02d", i), Topic: "orders", OrderingKey: fmt.Sprintf("k%d", i%7)}
		if err := errors.Join(c.topic.Publisher().Publish(t.Context(), []*broker.Message{&m})...); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 3 { // in each, whoever comes takes the partitions over
		ctx, stop := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		for i := range 2 {
			s := over(fmt.Sprintf("process%d", 2*round+i))
			ended.Go(func() {
				if err := c.consumer(source, s).Run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		enough := int64(n * (round + 1) / 4)
		if round == 2 {
			enough = n
		}
		c.await(ctx, d, over("person"), enough)
		stop()
		ended.Wait()
	}
	if got, err := d.Number(t.Context(), "SELECT count(DISTINCT name) FROM effect"); err != nil || got != n {
		t.Errorf("%d messages have an effect, want %d: %v", got, n, err)
	}
	seen := slices.Sorted(maps.Keys(w.model.Seen()))
	t.Logf("%d steps of the model:\n%q", len(seen), seen)
	for _, must := range []string{"owner moves the position past one, with an effect", "worker handles one that is waiting",
		"person replays one that is parked", "rival opens the position"} {
		if !slices.Contains(seen, must) {
			t.Errorf("no history had this step: %s", must)
		}
	}
	if w.wrong != nil {
		t.Error(w.wrong)
	}
}

const crewName = "readers"

// placeCrew are consumers of one name.
type placeCrew[T any] struct {
	*testing.T
	seed  uint64
	topic *membroker.Broker
	write func(context.Context, *watchedPlaces[T], T, *broker.Message) error

	mu    sync.Mutex
	tried map[string]int
}

func (c *placeCrew[T]) consumer(source broker.Source, s *watchedPlaces[T]) *inbox.Consumer {
	return &inbox.Consumer{Name: crewName, Source: source, Checkpoint: true, BatchSize: 3, StopTime: time.Second,
		Retry: inbox.Retry{Attempts: 2, First: time.Millisecond, Limit: time.Millisecond, Outage: -1},
		Handler: inbox.Tx(s, func(ctx context.Context, tx T, m *broker.Message) error {
			if c.fails(m.ID) {
				return errors.New("the business fails")
			}
			return c.write(ctx, s, tx, m)
		})}
}

// fails reports whether this attempt at a message fails. A fifth of them fail until
// they are parked.
func (c *placeCrew[T]) fails(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tried[id]++
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, c.seed, id)
	return (h.Sum64()%5 == 0 || strings.HasSuffix(id, "7")) && c.tried[id] <= 4
}

// await has a person decide about what is parked until so many messages have had
// their effect.
func (c *placeCrew[T]) await(ctx context.Context, d *engine.Database, s *watchedPlaces[T], effects int64) {
	admin := inbox.Admin{Store: s}
	testenv.Await(c.T, fmt.Sprint(effects, " effects"), func() bool {
		_, err := admin.Replay(ctx, store.ShelfQuery{Consumer: crewName}, inbox.Decision{By: "ann", Reason: "it is right now"})
		if err != nil {
			c.Error(err)
		}
		n, err := d.Number(ctx, "SELECT count(*) FROM effect")
		if err != nil {
			c.Error(err)
		}
		return n >= effects || c.Failed()
	})
}

// placeWatch knows what a database holds for a consumer. It is locked from a call
// that may change that until it was read.
type placeWatch[T any] struct {
	sync.Mutex
	model *models.Position
	wrong error
}

// watchedPlaces is a store as a process sees it.
type watchedPlaces[T any] struct {
	once.TxStore[T]
	offsets store.Positions[T]
	shelf   store.TxShelf[T]
	*placeWatch[T]
	name string

	effects []broker.Message // of the transaction that runs
	aside   []store.Shelved  // that it puts on the shelf
}

func watchPlaces[T any](t *testing.T, st once.Store, w *placeWatch[T], name string) *watchedPlaces[T] {
	txs, is := once.As[once.TxStore[T]](st)
	offsets, has := once.As[store.Positions[T]](st)
	shelf, and := once.As[store.TxShelf[T]](st)
	if !is || !has || !and {
		t.Fatal("it has no positions")
	}
	return &watchedPlaces[T]{TxStore: txs, offsets: offsets, shelf: shelf, placeWatch: w, name: name}
}

// Unwrap returns the store for what is not watched.
func (s *watchedPlaces[T]) Unwrap() once.Store { return s.TxStore }

// change judges what a call has changed.
func (s *watchedPlaces[T]) change(ctx context.Context, call func() error) error {
	s.Lock()
	defer s.Unlock()
	s.effects, s.aside = nil, nil
	err := call()
	if err != nil { // it was rolled back, and whoever is not sure of that looks below
		s.effects, s.aside = nil, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	held := models.Held{By: s.name, Person: s.name == "person", Effects: s.effects, Aside: s.aside}
	var places, rows error
	held.Places, places = s.offsets.Positions(ctx, crewName)
	held.Shelf, rows = s.shelf.Shelved(ctx, store.ShelfQuery{Consumer: crewName, Limit: 1000,
		States: []store.ShelfState{store.Waiting, store.Parked, store.Handled, store.Discarded}})
	if looked := cmp.Or(places, rows); looked != nil {
		s.wrong = errors.Join(s.wrong, looked)
	} else {
		s.wrong = errors.Join(s.wrong, s.model.Next(held))
	}
	return err
}

func (s *watchedPlaces[T]) OpenPosition(ctx context.Context, consumer, partition string) (is store.Position, err error) {
	err = s.change(ctx, func() error {
		is, err = s.offsets.OpenPosition(ctx, consumer, partition)
		return err
	})
	return is, err
}

func (s *watchedPlaces[T]) TransactAt(ctx context.Context, from, to store.Position, body func(T) error) error {
	return s.change(ctx, func() error {
		return s.offsets.TransactAt(ctx, from, to, func(tx T) error {
			s.effects, s.aside = nil, nil
			return body(tx)
		})
	})
}

func (s *watchedPlaces[T]) SetPosition(ctx context.Context, p store.Position) error {
	return s.change(ctx, func() error { return s.offsets.SetPosition(ctx, p) })
}

func (s *watchedPlaces[T]) Positions(ctx context.Context, consumer string) ([]store.Position, error) {
	return s.offsets.Positions(ctx, consumer)
}

func (s *watchedPlaces[T]) Transact(ctx context.Context, rs []once.ClaimRequest,
	body func(T, []once.Record) ([]once.Settlement, error)) (recs []once.Record, err error) {

	err = s.change(ctx, func() error {
		recs, err = s.TxStore.Transact(ctx, rs, func(tx T, recs []once.Record) ([]once.Settlement, error) {
			s.effects, s.aside = nil, nil
			return body(tx, recs)
		})
		return err
	})
	return recs, err
}

func (s *watchedPlaces[T]) Shelve(ctx context.Context, ms []store.Shelved) error {
	return s.change(ctx, func() error { return s.shelf.Shelve(ctx, ms) })
}

func (s *watchedPlaces[T]) Change(ctx context.Context, m store.Shelved) error {
	return s.change(ctx, func() error { return s.shelf.Change(ctx, m) })
}

func (s *watchedPlaces[T]) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	return s.shelf.Shelved(ctx, q)
}

func (s *watchedPlaces[T]) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error) {
	return s.shelf.ForgetShelved(ctx, keep, limit)
}

func (s *watchedPlaces[T]) ShelveTx(ctx context.Context, tx T, ms []store.Shelved) error {
	s.aside = append(s.aside, ms...)
	return s.shelf.ShelveTx(ctx, tx, ms)
}

func (s *watchedPlaces[T]) BlockedTx(ctx context.Context, tx T, consumer string, keys []string, parkedToo bool) ([]string, error) {
	return s.shelf.BlockedTx(ctx, tx, consumer, keys, parkedToo)
}

func (s *watchedPlaces[T]) ChangeTx(ctx context.Context, tx T, m store.Shelved) error {
	return s.shelf.ChangeTx(ctx, tx, m)
}
