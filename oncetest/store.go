package oncetest

import (
	"context"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Plain is s as a process uses it. What s is besides, it is too: a [once.Lister], a [store.Registry], a
// [store.Shelf]. Its Options are those of s, but for what the calls of one process share.
func Plain(p *Process, s once.Store) once.Store {
	if s == nil {
		return nil
	}
	plain := newPlain(p, s)
	l, hasList := s.(once.Lister)
	r, hasRegistry := s.(store.Registry)
	f, hasShelf := s.(store.Shelf)
	list, registry, shelf := &lister{p, l}, &registrar{p, r}, &shelf{p, f}
	if hasShelf {
		p.trial.keep(f)
	}
	switch [3]bool{hasList, hasRegistry, hasShelf} {
	case [3]bool{true, false, false}:
		return struct {
			*plainStore
			*lister
		}{plain, list}
	case [3]bool{false, true, false}:
		return struct {
			*plainStore
			*registrar
		}{plain, registry}
	case [3]bool{true, true, false}:
		return struct {
			*plainStore
			*lister
			*registrar
		}{plain, list, registry}
	case [3]bool{false, false, true}:
		return struct {
			*plainStore
			store.Shelf
		}{plain, shelf}
	case [3]bool{true, false, true}:
		return struct {
			*plainStore
			*lister
			store.Shelf
		}{plain, list, shelf}
	case [3]bool{false, true, true}:
		return struct {
			*plainStore
			*registrar
			store.Shelf
		}{plain, registry, shelf}
	case [3]bool{true, true, true}:
		return struct {
			*plainStore
			*lister
			*registrar
			store.Shelf
		}{plain, list, registry, shelf}
	}
	return plain
}

// plainStore is a store with steps.
type plainStore struct {
	process *Process
	inner   once.Store
	options *once.Options
}

func newPlain(p *Process, s once.Store) *plainStore {
	o := s.Options()
	if o != nil {
		o = o.Ready() // processes have nothing in common
	}
	return &plainStore{p, s, o}
}

func (s *plainStore) Options() *once.Options { return s.options }

func (s *plainStore) Claim(ctx context.Context, r once.ClaimRequest) (rec once.Record, err error) {
	err = s.process.cross("claim", func() error {
		rec, err = s.inner.Claim(ctx, r)
		s.process.claimed(s.inner, []once.ClaimRequest{r}, []once.Record{rec}, true)
		return err
	})
	return rec, err
}

// Extend is no step, because time alone says when it comes.
func (s *plainStore) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	if s.process.refuse() {
		return errDead
	}
	return s.inner.Extend(ctx, fence, d)
}

func (s *plainStore) Settle(ctx context.Context, set once.Settlement) error {
	return s.process.cross("settle", func() error { return s.inner.Settle(ctx, set) })
}

func (s *plainStore) Get(ctx context.Context, k once.Key) (rec once.Record, err error) {
	err = s.process.look(func() error {
		rec, err = s.inner.Get(ctx, k)
		return err
	})
	return rec, err
}

func (s *plainStore) Forget(ctx context.Context, limit int) (n int, err error) {
	err = s.process.cross("forget", func() error {
		n, err = s.inner.Forget(ctx, limit)
		return err
	})
	return n, err
}

type lister struct {
	process *Process
	inner   once.Lister
}

func (l *lister) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	err = l.process.look(func() error {
		page, err = l.inner.List(ctx, q)
		return err
	})
	return page, err
}

type registrar struct {
	process *Process
	inner   store.Registry
}

func (r *registrar) Register(ctx context.Context, c store.Consumer) (known store.Consumer, err error) {
	err = r.process.cross("register", func() error {
		known, err = r.inner.Register(ctx, c)
		return err
	})
	return known, err
}

func (r *registrar) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	err = r.process.look(func() error {
		all, err = r.inner.Consumers(ctx)
		return err
	})
	return all, err
}

type shelf struct {
	process *Process
	inner   store.Shelf
}

func (s *shelf) Shelve(ctx context.Context, ms []store.Shelved) error {
	return s.process.cross("shelve", func() error { return s.inner.Shelve(ctx, ms) })
}

func (s *shelf) Shelved(ctx context.Context, q store.ShelfQuery) (ms []store.Shelved, err error) {
	err = s.process.look(func() error {
		ms, err = s.inner.Shelved(ctx, q)
		return err
	})
	return ms, err
}

func (s *shelf) Change(ctx context.Context, m store.Shelved) error {
	return s.process.cross("change", func() error { return s.inner.Change(ctx, m) })
}

// ForgetShelved is no step, because time alone says when it comes.
func (s *shelf) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (n int, err error) {
	err = s.process.look(func() error {
		n, err = s.inner.ForgetShelved(ctx, keep, limit)
		return err
	})
	return n, err
}
