package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// selection selects the keys to list.
type selection struct {
	once.RecordQuery

	// What no store selects by; zero: any.
	newerThan time.Duration // since the last change
	from, to  time.Time     // of the last change, by the store's clock
}

func (s selection) has(r once.Record) bool {
	return (s.newerThan == 0 || unchanged(r) < s.newerThan) && (s.from.IsZero() || !r.Updated.Before(s.from)) &&
		(s.to.IsZero() || r.Updated.Before(s.to))
}

// unchanged returns how long ago a record last changed, by the store's clock.
func unchanged(r once.Record) time.Duration { return max(r.Age-r.Updated.Sub(r.Created), 0) }

// pageTime ends a page that is not full: what is looked for may be rare.
const pageTime = 10 * time.Second

// page returns selected records and the key after which the next page begins. The
// zero Key means that there are no more.
func page(ctx context.Context, t *target.Target, s selection) (found []once.Record, next once.Key, err error) {
	limit := s.Limit
	for begun := time.Now(); ; {
		s.Limit = limit - len(found)
		recs, next, err := t.List(ctx, s.RecordQuery)
		noteDamaged(t)
		if err != nil {
			return found, next, err
		}
		found = append(found, slices.DeleteFunc(recs, func(r once.Record) bool { return !s.has(r) })...)
		if next == (once.Key{}) || len(found) >= limit || time.Since(begun) > pageTime {
			return found, next, nil
		}
		s.After = next
	}
}

// noteDamaged tells which records a list has left out, because they could not be
// read.
func noteDamaged(t *target.Target) {
	for _, err := range t.Damaged {
		note("Left out: %v", err)
	}
	t.Damaged = nil
}

// latest returns the most recently changed records of a selection, newest first.
// No store has an index on that time, because it would cost every call a write.
// So latest scans the selection for a limited time.
type latest struct {
	most  int
	found []once.Record
	seen  int  // that are selected
	cut   bool // there may be others
}

func (l *latest) look(ctx context.Context, t *target.Target, s selection, progress func()) error {
	for begun := time.Now(); ; {
		recs, next, err := t.List(ctx, s.RecordQuery)
		noteDamaged(t)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if s.has(r) {
				l.seen++
				l.found = append(l.found, r)
			}
		}
		slices.SortStableFunc(l.found, func(a, b once.Record) int { return b.Updated.Compare(a.Updated) })
		l.found = slices.Clip(l.found[:min(len(l.found), l.most)])
		progress()
		if l.cut = next != (once.Key{}); !l.cut || time.Since(begun) > pageTime {
			return nil
		}
		s.After = next
	}
}

// token formats a key for --after.
func token(k once.Key) string {
	if k == (once.Key{}) {
		return ""
	}
	text, _ := json.Marshal([]string{k.Scope, k.Operation, k.ID})
	return base64.RawURLEncoding.EncodeToString(text)
}

func untoken(text string) (k once.Key, err error) {
	if text == "" {
		return k, nil
	}
	var parts []string
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &parts)
	}
	if err != nil || len(parts) != 3 {
		return k, usage("--after is %q: use the cursor that the previous page printed", text)
	}
	return once.Key{Scope: parts[0], Operation: parts[1], ID: parts[2]}, nil
}
