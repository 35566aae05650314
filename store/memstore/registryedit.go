package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/effectively-once/once/store"
)

// RenameConsumer gives all rows of a consumer another name.
func (s *Store) RenameConsumer(ctx context.Context, from, to string) error {
	for _, name := range []string{from, to} {
		if err := checkNames("Name", name); err != nil {
			return err
		}
	}
	return s.do(ctx, func(now time.Time) error {
		gone, after, err := store.RenameRows(s.registryRows(now), from, to)
		if err != nil {
			return err
		}
		s.rewrite(now, gone, after)
		return nil
	})
}

// RetireConsumer replaces the rows of a consumer by one that says that it is
// retired, and its positions by ones that nobody can read on from.
func (s *Store) RetireConsumer(ctx context.Context, r store.Retirement) error {
	if err := checkNames("Name", r.Name, "As", r.As); err != nil {
		return err
	}
	return s.do(ctx, func(now time.Time) error {
		after, done, err := store.RetireRows(s.registryRows(now), r)
		if err != nil || done {
			return err
		}
		if s.hasShelved(after.Keys) || !r.Queued && s.hasShelved(store.QueueOf(after.Keys)) {
			return fmt.Errorf("%w: %q", store.ErrShelfInUse, r.Name)
		}
		for at := range s.positions {
			if at.consumer == after.Keys && s.moving[at] != nil {
				return errMoving(at)
			}
		}
		for at := range s.positions {
			if at.consumer == after.Keys {
				_, _ = s.raise(at, func(p *store.Position) {
					if p.Log != "" {
						p.Log = store.RetiredLog
					}
				})
			}
		}
		s.rewrite(now, []string{r.Name}, []store.RegistryRow{after})
		return nil
	})
}

func (s *Store) registryRows(now time.Time) (rows []store.RegistryRow) {
	for _, of := range s.consumers {
		for _, r := range of {
			rows = append(rows, store.RegistryRow{Consumer: r.at(now), At: int64(r.seen.Sub(now))})
		}
	}
	return rows
}

func (s *Store) rewrite(now time.Time, gone []string, after []store.RegistryRow) {
	for _, name := range gone {
		delete(s.consumers, name)
	}
	for _, row := range after {
		row.Seen = 0
		s.consumers[row.Name] = append(s.consumers[row.Name], registered{row.Consumer, now.Add(time.Duration(row.At))})
	}
}
