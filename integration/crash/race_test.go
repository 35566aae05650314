//go:build linux

package crash

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/proof"
)

const racers, duplicatesEach = 4, 16 // processes, and calls in each

// everyRace makes 64 calls with one key at once: one of them does the work.
func (a *arena) everyRace(t *testing.T, ctx context.Context) {
	for _, r := range []race{
		{},
		{NoWait: true, Held: true},
		{Inside: true},
		{Inside: true, NoWait: true, Held: a.engine != SQLite}, // on SQLite it would lock the whole file
	} {
		r.Duplicates = duplicatesEach
		t.Run(fmt.Sprintf("inside=%v,nowait=%v", r.Inside, r.NoWait), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, proof.Patience)
			defer cancel()
			s, k, err := a.begin(ctx, a.lanes[0], path{})
			if err != nil {
				t.Fatal(err)
			}
			k.Role, k.Race, k.Lease = races, r, time.Minute // the work takes long without a crash
			err = a.judgeRace(ctx, s, r, a.race(t, ctx, k))
			a.judge(err)
			if err != nil {
				t.Errorf("%s: %v", a.engine, err)
			}
		})
	}
}

// race runs the race, and returns how all calls ended.
func (a *arena) race(t *testing.T, ctx context.Context, k task) []ending {
	workers := make([]*partner, racers)
	for i := range workers {
		workers[i] = a.talk(t, ctx, k)
	}
	for _, w := range workers {
		if said := w.hear(); said != ready {
			t.Errorf("a worker said %q: %s", said, w.complained.String())
		}
	}
	ends := make(chan ending)
	var hearing sync.WaitGroup
	for _, w := range workers {
		w.tell(start)
		hearing.Go(func() {
			for range k.Race.Duplicates {
				ends <- w.hearEnding()
			}
		})
	}
	all := make([]ending, 0, racers*k.Race.Duplicates)
	for len(all) < cap(all) {
		if len(all) == cap(all)-1 && k.Race.Held { // only the call that does the work is missing
			for _, w := range workers {
				_, _ = fmt.Fprintln(w.in, release) // most of the workers have ended
			}
		}
		all = append(all, <-ends)
	}
	hearing.Wait()
	for _, w := range workers {
		w.leave()
	}
	return all
}

func (a *arena) judgeRace(ctx context.Context, s *scene, r race, all []ending) error {
	ran, replayed, refused := 0, 0, 0
	answer := ""
	for _, e := range all {
		switch {
		case e.Error == "" && !e.Replayed:
			ran++
			answer = e.Answer
		case e.Error == "":
			replayed++
		case e.Refused:
			refused++
		}
	}
	var errs []error
	for _, e := range all {
		if e.Error == "" && e.Answer != answer {
			errs = append(errs, fmt.Errorf("an answer is %q, the first was %q", e.Answer, answer))
		}
	}
	switch {
	case ran != 1 || ran+replayed+refused != len(all):
		errs = append(errs, fmt.Errorf("%d ran, %d replayed and %d were refused, of %d: %+v", ran, replayed, refused, len(all), all))
	case r.Held && refused != len(all)-1:
		errs = append(errs, fmt.Errorf("%d were refused while the work was held, of %d", refused, len(all)-1))
	case !r.NoWait && refused > 0:
		errs = append(errs, fmt.Errorf("%d were refused that were to wait", refused))
	}
	if r.Inside {
		errs = append(errs, rowsInside(1)(ctx, s, answer, nil))
	} else {
		errs = append(errs, onceOutside(ctx, s, answer, nil))
	}
	return errors.Join(errs...)
}
