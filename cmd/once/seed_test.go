package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cosmosstore"
	"github.com/effectively-once/once/store/dynamostore"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/tablestore"
)

// seed makes the tables at a URL, and fills them: it is a command of the scripts. With a second argument, the message
// with an unknown outcome has a key, which is parked.
func seed() {
	err := seedAt(context.Background(), os.Args[1])
	if err == nil && len(os.Args) > 2 {
		err = keyShelved(context.Background(), os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runSQL runs a statement on a SQLite file: it is another command of the scripts.
func runSQL() {
	db, err := sql.Open("sqlite", "file:"+os.Args[1])
	if err == nil {
		_, err = db.Exec(os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func seedAt(ctx context.Context, from string) error {
	t, err := target.Open(ctx, from, &target.Options{Create: true})
	if err != nil {
		return err
	}
	defer t.Close()
	if t.Tables != nil {
		if err := t.Tables.Migrate(ctx); err != nil {
			return err
		}
	}
	pay := &once.Operation[map[string]string]{Name: "pay", OnUnknown: once.Park}
	if _, err := once.Do(ctx, t.Store, pay.For("paid"), func(context.Context, once.Key) (map[string]string, error) {
		return map[string]string{"charge": "ch_1"}, nil
	}); err != nil {
		return err
	}
	for _, k := range []struct {
		key once.Key
		to  once.Status
	}{
		{once.Key{Operation: "pay/charge", ID: "cut off"}, once.Unknown},
		{once.Key{Operation: "pay/charge", ID: "--cut/off"}, once.Unknown},
		{once.Key{Scope: "tenant 7", Operation: "pay", ID: "odd"}, once.Parked},
		{once.Key{Operation: "mail", ID: "welcome"}, once.Parked},
		{once.Key{Operation: "mail", ID: "bye"}, once.Running},
	} {
		if err := bring(ctx, t.Store, k.key, k.to); err != nil {
			return err
		}
		if err := tick(ctx, t.Store, k.key); err != nil {
			return err
		}
	}
	if t.Tables == nil {
		return seedKeyStore(ctx, t)
	}
	if err := seedShelf(ctx, need[consumerStore](t)); err != nil {
		return err
	}
	return seedOutbox(ctx, t)
}

func bring(ctx context.Context, s once.Store, k once.Key, to once.Status) error {
	r := once.ClaimRequest{Fence: once.Fence{Key: k}, Lease: time.Hour}
	rand.Read(r.Owner[:])
	rec, err := s.Claim(ctx, r)
	if err != nil || to == once.Running {
		return err
	}
	return s.Settle(ctx, once.Settlement{Fence: once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt}, Status: to,
		Reason: "made so by\nthe seed"})
}

// tick returns when the store's clock, which counts milliseconds on SQLite, has
// moved on since a key changed: so the next key changes later.
func tick(ctx context.Context, s once.Store, k once.Key) error {
	for {
		rec, err := s.Get(ctx, k)
		if err != nil || rec.Created.Add(rec.Age).After(rec.Updated) {
			return err
		}
	}
}

// need returns a capability of the store, which it has.
func need[Capability any](t *target.Target) Capability {
	c, err := target.Need[Capability](t, "such thing")
	if err != nil {
		panic(err)
	}
	return c
}

// consumerStore is a store that consumers work on.
type consumerStore interface {
	store.Registry
	inbox.AdminStore
}

func seedShelf(ctx context.Context, s consumerStore) error {
	if _, err := s.Register(ctx, store.Consumer{Name: "billing", Source: "queue orders"}); err != nil {
		return err
	}
	put := func(consumer, id, reason string) store.Shelved {
		return store.SealShelved(&s.Options().Sealing, store.Shelved{Consumer: consumer, Message: broker.Message{ID: id,
			Topic: "orders", OrderingKey: id, Body: []byte("{}"), Header: map[string]string{"from": "seed"}}, State: store.Parked,
			Attempts: 10, Reason: reason})
	}
	if err := s.Shelve(ctx, []store.Shelved{put("billing", "m1", "no such customer"), put("billing", "m2",
		"no such customer"),
		put("billing", "m3", "unknown outcome: cut off"), put("mailing", "m1", "no such address")}); err != nil {
		return err
	}
	return s.SetPosition(ctx, store.Position{Consumer: "ledger", Partition: "orders/0", Log: "log", Offset: 41})
}

func keyShelved(ctx context.Context, at string) error {
	t, err := target.Open(ctx, at, nil)
	if err != nil {
		return err
	}
	defer t.Close()
	m, err := need[store.Shelf](t).Shelved(ctx, store.ShelfQuery{Consumer: "billing", IDs: []string{"m3"}})
	if err != nil || len(m) != 1 {
		return fmt.Errorf("%d messages: %w", len(m), err)
	}
	m[0].Message.ID, m[0].Key = "m4", "order 4"
	if err := need[store.Shelf](t).Shelve(ctx, m); err != nil {
		return err
	}
	return bring(ctx, t.Store, once.Key{Operation: "billing", ID: m[0].Key}, once.Parked)
}

// seedKeyStore fills the shelf and the outbox of a store without tables, if it has
// them.
func seedKeyStore(ctx context.Context, t *target.Target) error {
	if s, ok := t.Store.(consumerStore); ok {
		if err := seedShelf(ctx, s); err != nil {
			return err
		}
	}
	ms := make([]store.Outgoing, 3)
	for i := range ms {
		ms[i] = store.Outgoing{Message: broker.Message{ID: fmt.Sprint("o", i+1), Topic: "order.paid", OrderingKey: "k"}}
	}
	var err error
	switch s := t.Store.(type) {
	case *redisstore.Store:
		tx := s.Begin()
		err = errors.Join(s.PutTx(ctx, tx, ms), tx.Commit(ctx))
	case *dynamostore.Store:
		tx := s.Begin()
		err = errors.Join(s.PutTx(ctx, tx, ms), tx.Commit(ctx))
	case *cosmosstore.Store:
		tx := s.Begin()
		tx.CreateItem([]byte(`{"id": "order", "customer": "c1"}`))
		err = errors.Join(s.PutTx(ctx, tx, ms), tx.Commit(ctx))
	case *tablestore.Store:
		tx := s.Begin()
		order := aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: []byte(`{"PartitionKey": "shop", "RowKey": "order"}`)}
		err = errors.Join(tx.Write(order), s.PutTx(ctx, tx, ms), tx.Commit(ctx))
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return stickOutbox(ctx, need[store.Relayable](t))
}

func seedOutbox(ctx context.Context, t *target.Target) error {
	for _, id := range []string{"o1", "o2", "o3"} {
		if _, err := t.Tables.DB.ExecContext(ctx,
			fmt.Sprintf("INSERT INTO %s (lane, id, topic, ordering_key) VALUES (1, '%s', 'order.paid', 'k')",
				t.Tables.Names.Outbox(), id)); err != nil {
			return err
		}
	}
	return stickOutbox(ctx, need[store.Relayable](t))
}

// stickOutbox makes the first two messages Stuck.
func stickOutbox(ctx context.Context, s store.Relayable) error {
	ms, err := s.Outgoing(ctx, store.OutgoingQuery{State: store.Pending, Limit: 2})
	if err != nil {
		return err
	}
	for i := range ms {
		ms[i].Attempts, ms[i].Reason = 10, "no such topic"
	}
	_, err = s.MoveOutgoing(ctx, [16]byte{}, ms, store.Stuck)
	return err
}
