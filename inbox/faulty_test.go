package inbox_test

import (
	"context"
	"slices"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
)

type mtx = *memstore.Tx

// bent is a source with modified sessions.
type bent struct {
	broker.Source
	arrive func(*broker.Delivery)
	ack    func([]broker.Delivery) error
	stuck  func(broker.Delivery) bool // if it is true of a delivery, an Ack lasts until its context ends
	reject func([]broker.Delivery) error
	seek   func()
}

func (s bent) Open(ctx context.Context, window int) (broker.Session, error) {
	in, err := s.Source.Open(ctx, window)
	if err != nil {
		return nil, err
	}
	return bentSession{in, s}, nil
}

type bentSession struct {
	broker.Session
	bent bent
}

func (s bentSession) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	ds, err := s.Session.Receive(ctx, limit)
	for i := range ds {
		if s.bent.arrive != nil {
			s.bent.arrive(&ds[i])
		}
	}
	return ds, err
}

func (s bentSession) Ack(ctx context.Context, ds []broker.Delivery) error {
	if s.bent.ack != nil {
		if err := s.bent.ack(ds); err != nil {
			return err
		}
	}
	if s.bent.stuck != nil && slices.ContainsFunc(ds, s.bent.stuck) {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Session.Ack(ctx, ds)
}

func (s bentSession) Reject(ctx context.Context, ds []broker.Delivery, reason string) error {
	if s.bent.reject != nil {
		if err := s.bent.reject(ds); err != nil {
			return err
		}
	}
	return s.Session.Reject(ctx, ds, reason)
}

func (s bentSession) KeepsRejected() bool {
	keeper, ok := s.Session.(broker.DeadLetterer)
	return ok && keeper.KeepsRejected()
}

func (s bentSession) Seek(ctx context.Context, p broker.Position) error {
	if s.bent.seek != nil {
		s.bent.seek()
	}
	return s.Session.(broker.Seeker).Seek(ctx, p)
}

// ill is a store with failing methods.
type ill struct {
	*memstore.Store
	transact func() error
	at       func(inner func() error) error
	change   func() error
}

func (s *ill) Transact(ctx context.Context, rs []once.ClaimRequest, body func(mtx, []once.Record) ([]once.Settlement, error)) ([]once.Record, error) {
	if s.transact != nil {
		if err := s.transact(); err != nil {
			return nil, err
		}
	}
	return s.Store.Transact(ctx, rs, body)
}

func (s *ill) TransactAt(ctx context.Context, from, to store.Position, body func(mtx) error) error {
	inner := func() error { return s.Store.TransactAt(ctx, from, to, body) }
	if s.at != nil {
		return s.at(inner)
	}
	return inner()
}

func (s *ill) Change(ctx context.Context, m store.Shelved) error {
	if s.change != nil {
		if err := s.change(); err != nil {
			return err
		}
	}
	return s.Store.Change(ctx, m)
}

func (b *bench) onTheShelf(states ...store.ShelfState) []store.Shelved {
	b.t.Helper()
	found, err := b.store.Shelved(b.t.Context(), store.ShelfQuery{States: states})
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

func (b *bench) shelve(consumer string, m *broker.Message) {
	b.t.Helper()
	m.Topic = "orders"
	err := b.store.Shelve(b.t.Context(), []store.Shelved{{Consumer: consumer, Key: m.ID, Message: *m, State: store.Waiting}})
	if err != nil {
		b.t.Fatal(err)
	}
}
