package oncetest

import (
	"context"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Plain returns s as a process uses it: its calls are steps of the process, and
// so are those of its capabilities [once.Lister], [store.Registry] and
// [store.Shelf], if it has them. [once.As] finds these, and all other
// capabilities of s, whose calls are no steps. The options are those of s, except
// for what the calls of one process share.
func Plain(p *Process, s once.Store) once.Store {
	if s == nil {
		return nil
	}
	return newPlain(p, s)
}

// plainStore is a store whose calls are steps.
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
	if shelf, ok := once.As[store.Shelf](s); ok {
		p.trial.keep(shelf)
	}
	return &plainStore{p, s, o}
}

// Unwrap returns the inner store, for capabilities whose calls are no steps.
func (s *plainStore) Unwrap() once.Store { return s.inner }

// As finds the capabilities whose calls are steps.
func (s *plainStore) As(target any) bool {
	switch target := target.(type) {
	case *once.Lister:
		return stepped(s.inner, target, func(l once.Lister) once.Lister { return &lister{s.process, l} })
	case *store.Registry:
		return stepped(s.inner, target, func(r store.Registry) store.Registry { return &registrar{s.process, r} })
	case *store.Shelf:
		return stepped(s.inner, target, func(f store.Shelf) store.Shelf { return &shelf{s.process, f} })
	}
	return false
}

// stepped sets a target of As to a capability of the inner store, with steps. It
// reports whether the inner store has it.
func stepped[Capability any](inner once.Store, target *Capability, with func(Capability) Capability) bool {
	c, ok := once.As[Capability](inner)
	if ok {
		*target = with(c)
	}
	return ok
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

// Extend is not a step, because its timing is not reproducible.
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

// ForgetShelved is not a step, because its timing is not reproducible.
func (s *shelf) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (n int, err error) {
	err = s.process.look(func() error {
		n, err = s.inner.ForgetShelved(ctx, keep, limit)
		return err
	})
	return n, err
}
