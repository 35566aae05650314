//go:build go1.25

package janitor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store/memstore"
)

// A file system that cannot do what is asked of it says so with an error that means something else where a store says it.
func TestAnArchiveThatSaysUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, stats, text := memstore.New(nil), new(archive), new(janitor.Stats), new(strings.Builder)
		do(t, s, charge, "1", "answer", nil)
		time.Sleep(2 * time.Hour)
		a.fail(fmt.Errorf("sync archive.jsonl: %w", errors.ErrUnsupported))
		j := &janitor.Janitor{Store: s, Archive: a.take, Stats: stats, Logger: slog.New(slog.NewTextHandler(text, nil))}
		if err := j.Sweep(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Sweep returned %v, and the archive has taken nothing", err)
		}
		stop := run(t, j)
		time.Sleep(time.Hour)
		stop()
		if !stats.Behind.Load() || stats.Looks.Load() > 0 || !strings.Contains(text.String(), "the archive failed") {
			t.Errorf("behind: %v, after %d looks; the log says %q", stats.Behind.Load(), stats.Looks.Load(), text)
		}
	})
}

// An outcome with a wrong checksum is kept and not archived. It does not block
// others.
func TestADamagedOutcomeIsNotArchived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, stats, text := &archived{Store: memstore.New(nil)}, new(archive), new(janitor.Stats), new(strings.Builder)
		for i := range 25 {
			do(t, s, charge, fmt.Sprint(i), "answer", nil)
		}
		for _, id := range []string{"damaged", "damaged, too"} {
			rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: charge.For(id).Key(), Owner: [16]byte{1}}, Lease: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			fence := once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
			if err := s.Settle(t.Context(), once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: 3 * time.Hour,
				Outcome: once.Outcome{Body: []byte(`"amswer"`), ContentType: "application/json", Sum: 4711}}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Hour)
		j := &janitor.Janitor{Store: s, Archive: a.take, Batch: 10, Stats: stats, Logger: slog.New(slog.NewTextHandler(text, nil))}
		if err := j.Sweep(t.Context()); !errors.Is(err, once.ErrCorrupt) || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("Sweep returned %v", err)
		}
		stop := run(t, j)
		time.Sleep(time.Hour)
		stop()
		if n, _ := a.seen(); n != 25 || a.times("damaged 1") > 0 {
			t.Errorf("%d outcomes are archived, the damaged one %d times", n, a.times("damaged 1"))
		}
		due, _, err := s.Forgettable(t.Context(), 100)
		left := 0
		for _, rec := range due {
			if rec.Status == once.Done {
				left++
			}
		}
		if left != 2 || err != nil {
			t.Errorf("%d outcomes are left, %v", left, err)
		}
		if !stats.Behind.Load() || !strings.Contains(text.String(), "not what was recorded") {
			t.Errorf("behind: %v; the log says %q", stats.Behind.Load(), text)
		}
	})
}

// What an archive took, however slowly, is forgotten: it does not come again for ever.
func TestASlowArchive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := &archived{Store: memstore.New(nil)}, new(archive)
		do(t, s, charge, "1", "answer", nil)
		time.Sleep(2 * time.Hour)
		ends := false
		a.then = func(ctx context.Context, _ []once.Record) {
			time.Sleep(time.Minute) // and takes no notice of its context
			ends = ctx.Err() != nil
		}
		j := &janitor.Janitor{Store: s, Archive: a.take, BatchTime: time.Second}
		for range 3 {
			if err := j.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if a.times("1 1") != 1 || !ends {
			t.Errorf("it was archived %d times, in a context that ends: %v", a.times("1 1"), ends)
		}
	})
}

// An Archive that does not return has taken nothing, and the Janitor goes on.
func TestAnArchiveThatPanics(t *testing.T) {
	for name, end := range map[string]func(){"the Archive panicked, see": func() { panic("disk") }, "the Archive ended its goroutine, see": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, a, text := memstore.New(nil), new(archive), new(strings.Builder)
				var good atomic.Bool
				do(t, s, charge, "1", "answer", nil)
				time.Sleep(2 * time.Hour)
				take := func(ctx context.Context, done []once.Record) error {
					if !good.Load() {
						end()
					}
					return a.take(ctx, done)
				}
				stats := new(janitor.Stats)
				j := &janitor.Janitor{Store: s, Archive: take, Stats: stats, Logger: slog.New(slog.NewTextHandler(text, nil))}
				stop := run(t, j)
				time.Sleep(time.Minute)
				synctest.Wait() // so that nobody writes to text
				log := text.String()
				if stats.Keys.Load() > 0 || !strings.Contains(log, "the archive failed") || !strings.Contains(log, name) || !strings.Contains(log, "TestAnArchiveThatPanics") {
					t.Errorf("%d keys are forgotten; the log says %q", stats.Keys.Load(), log)
				}
				good.Store(true)
				time.Sleep(time.Hour)
				stop()
				if stats.Keys.Load() == 0 || len(a.got) != 1 {
					t.Errorf("%d keys are forgotten and %d archived, want all", stats.Keys.Load(), len(a.got))
				}
			})
		})
	}
}
