//go:build linux

package crash

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// told is a world with fixed answers.
type told struct {
	world
	marks []string
	err   error
}

func (w told) rows(context.Context, string) ([]string, error) { return w.marks, w.err }

// What could not be checked is neither a loss nor a pass: it is counted apart,
// with its own message.
func TestWhatCouldNotBeCheckedIsCountedApart(t *testing.T) {
	late := fmt.Errorf("read: %w", context.DeadlineExceeded)
	for _, test := range []struct {
		name                             string
		path                             string
		world                            told
		answer                           string
		ended                            error
		duplicates, losses, unchecked, f int64
	}{
		{name: "right", path: "dotx", world: told{marks: []string{"a"}}, answer: "a"},
		{name: "missing", path: "dotx", answer: "a", losses: 1, f: 1},
		{name: "another", path: "dotx", world: told{marks: []string{"b"}}, answer: "a", losses: 1, f: 1},
		{name: "twice", path: "dotx", world: told{marks: []string{"a", "a"}}, answer: "a", duplicates: 1, f: 1},
		{name: "not seen", path: "dotx", world: told{err: late}, answer: "a", unchecked: 1, f: 1},
		{name: "not seen, plain", path: "dotx-plain", world: told{err: late}, unchecked: 1, f: 1},
		{name: "not seen, of another error", path: "dotx", world: told{err: errors.New("closed")}, answer: "a", unchecked: 1, f: 1},
		{name: "out of time before there is an answer", path: "dotx", world: told{marks: []string{"a"}}, ended: late, unchecked: 1, f: 1},
		{name: "out of time, and nothing there", path: "dotx", ended: late, unchecked: 1, f: 1},
		{name: "out of time, and there twice", path: "dotx", world: told{marks: []string{"a", "a"}}, ended: late, duplicates: 1, f: 1},
		{name: "refused", path: "dotx", ended: errors.New("no"), losses: 1, f: 1},
	} {
		p, err := pathNamed(test.path)
		if err != nil {
			t.Fatal(err)
		}
		var y tally
		err = p.check(t.Context(), &scene{world: test.world, outside: outside{t.TempDir()}, id: "x"}, test.answer, test.ended)
		y.judge(err)
		if y.duplicates.Load() != test.duplicates || y.losses.Load() != test.losses || y.unchecked.Load() != test.unchecked || y.failed.Load() != test.f {
			t.Errorf("%s: %v, %d failed (%v)", test.name, &y, y.failed.Load(), err)
		}
	}
}
