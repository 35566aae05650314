package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/checksum"
	"github.com/effectively-once/once/internal/sim"
)

// errMistake is the error of work that finds out that its caller has made a mistake.
var errMistake = errors.New("world: this is another request")

// strays calls a key with another input: at any time, or together with a call that
// has the first one.
func (l *life[Tx]) strays(ctx context.Context, kind, id string) {
	d, has := l.Trait(fmt.Sprintf("another input of %s/%s by %s", kind, id, l.p.Name), l.Stray)
	if !has {
		return
	}
	wait := d.Between(0, l.Length)
	if d.Chance(.7) {
		wait = l.pause(kind, id, 0) + d.Between(0, []time.Duration{30 * time.Millisecond, 5 * time.Second}[d.Number(2)])
	}
	for range 1 + d.Number(4) {
		if sim.Sleep(ctx, wait) != nil {
			return
		}
		l.mistake(ctx, kind, id)
		wait = d.Between(time.Millisecond, []time.Duration{time.Second, 20 * time.Second}[d.Number(2)])
	}
}

// mistake calls a key with another input, which must not get its answer, nor be told
// to wait for it. Its work, if it is the first, does nothing.
func (l *life[Tx]) mistake(ctx context.Context, kind, id string) {
	key := kind + "/" + id
	d := l.DrawNth(l.p.Name, "makes a mistake", key)
	input := fmt.Sprintf("%s, %s, %d", id, l.p.Name, l.Number(l.p.Name, "mistakes", key))
	work := l.operation(l.p, kind).For(id).Input([]byte(input))
	if d.Chance(.3) {
		work = work.Redelivered()
	}
	l.book.strays(key)
	a, err := l.doesNothing(ctx, kind, work)
	if l.p.IsDead() || ctx.Err() != nil {
		return
	}
	l.Tell(sim.Line{Who: l.p.Name, What: "is told", About: key, Note: fmt.Sprintf("another input: %s", sim.Outcome(err))})
	is := l.shop.record(work.Key())
	switch {
	case is.Attempt > 0 && len(is.Fingerprint) == 0: // of a caller without an input, who was the first
	case isInput(is, l.store.Options().Secret, input): // it was the first since the key was free, and Lookup has found what happened before
	case err == nil, errors.Is(err, once.ErrRejected), errors.Is(err, once.ErrExpired):
		l.Broke(OneAnswer, key, "a call with another input was told %q, %v", a.Text, err)
	case errors.Is(err, once.ErrInProgress) && l.isClaimed(kind, key):
		l.Broke(MayRetry, key, "a call with another input was told to wait: %v", err)
	}
}

// isInput reports whether a record has this input.
func isInput(rec once.Record, secret []byte, input string) bool {
	is := checksum.Fingerprint(secret, rec.Key.UUID(), []byte(input))
	return bytes.Equal(rec.Fingerprint, is[:])
}

// doesNothing calls a key with work that does nothing.
func (l *life[Tx]) doesNothing(ctx context.Context, kind string, work once.Work[Answer]) (Answer, error) {
	if kind == inTx {
		return once.DoTx(ctx, l.store, work, func(context.Context, Tx) (Answer, error) { return Answer{}, errMistake })
	}
	return once.Do(ctx, l.store, work, func(ctx context.Context, key once.Key) (Answer, error) {
		claim, _ := once.ClaimFrom(ctx)
		ends := l.book.begins(sim.KeyText(key), claim.Attempt, l.p)
		defer ends(frees(key))
		return Answer{}, once.NotDone(errMistake)
	})
}

// isClaimed reports whether whoever meets a running claim of a key sees its input: it
// is no transaction that is in flight.
func (l *life[Tx]) isClaimed(kind, key string) bool {
	if kind == inTx || l.Resumes {
		return false
	}
	for _, c := range l.CallsAbout(key) {
		if c.What == "Claim" && c.Fault != sim.NoFault {
			return false
		}
	}
	return true
}

func (b *book) strays(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of(key).strayed = true
}

// inputs judges that a key keeps its input from its first attempt to its answer, and
// that no key is free whose work has happened.
type inputs struct {
	*book
	mu   sync.Mutex
	last map[once.Key]once.Record
}

func newInputs(b *book) *inputs { return &inputs{book: b, last: make(map[once.Key]once.Record)} }

// watch looks at each record that a store in memory has changed.
func (in *inputs) watch(s *sim.Store) {
	also := s.Recorded
	s.Recorded = func(p *sim.Process, k once.Key, keep time.Duration) {
		also(p, k, keep)
		is, _ := s.Get(context.Background(), k) // of a store in memory
		in.mu.Lock()
		was := in.last[k]
		in.last[k] = is
		in.mu.Unlock()
		in.judge(was, is)
	}
}

func (in *inputs) judge(was, is once.Record) {
	key := sim.KeyText(is.Key)
	wasOpen := was.Status == once.Running || was.Status == once.Unknown
	switch {
	case wasOpen && is.Status == once.Running && is.Attempt == was.Attempt+1:
		if len(was.Fingerprint) > 0 && !bytes.Equal(was.Fingerprint, is.Fingerprint) {
			in.Broke(OneAnswer, key, "attempt %d has taken over from attempt %d, and has another input", is.Attempt, was.Attempt)
		}
	case is.Status == once.Absent && is.Attempt > 0 && is.Attempt == was.Attempt:
		in.judgeFreed(key, is.Created)
	}
}

// judgeFreed judges a key that was made free in the store.
func (b *book) judgeFreed(key string, created time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.of(key).effects {
		if ago := b.Now() - e.At; ago < time.Since(created) {
			b.Broke(EffectOnce, key, "is free again, and happened %v ago", ago)
			return
		}
	}
}
