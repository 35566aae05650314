//go:build linux

package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"github.com/effectively-once/once"
)

// ending is how a call of a worker ended.
type ending struct {
	Answer   string
	Replayed bool
	Refused  bool // ErrInProgress
	Lost     bool // ErrLeaseLost
	Error    string
}

func endingOf(answer string, r once.Report, err error) ending {
	e := ending{Answer: answer, Replayed: r.Replayed, Refused: errors.Is(err, once.ErrInProgress), Lost: errors.Is(err, once.ErrLeaseLost)}
	if err != nil {
		e.Error = err.Error()
	}
	return e
}

func (e ending) say(out io.Writer) error {
	text, err := json.Marshal(e)
	if err == nil {
		_, err = fmt.Fprintln(out, string(text))
	}
	return err
}

// The places where a worker stalls.
const (
	stallKey    = "key"    // before an effect with an idempotency key, in an operation that resends
	stallBefore = "before" // before an effect that can be asked about
	stallAfter  = "after"  // after it
	stallPark   = "park"   // before an effect that cannot be asked about
	stallTx     = "tx"     // in a transaction, after its row was written
)

// stall stops this process in the middle of its work, until it gets SIGCONT,
// and prints how the work ended.
func (s *scene) stall(ctx context.Context, way string, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	stop := sync.OnceFunc(func() {
		s.betweenBeats(func() { // otherwise it may stop with a lock in the database
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
			_, _ = lines.ReadString('\n') // this thread may run on for a moment before the signal arrives
		})
	})
	s.hold = stop
	var r once.Report
	answer, err := s.stallIn(ctx, way, stop, &r)
	return endingOf(answer, r, err).say(out)
}

func (s *scene) stallIn(ctx context.Context, way string, stop func(), r *once.Report) (string, error) {
	before := func(work func(context.Context, once.Key) (string, error)) func(context.Context, once.Key) (string, error) {
		return func(ctx context.Context, key once.Key) (string, error) {
			stop()
			return work(ctx, key)
		}
	}
	switch way {
	case stallKey:
		return once.Do(ctx, s.world, s.resending().For(s.id).Report(r), before(s.sendKey))
	case stallPark:
		return once.Do(ctx, s.world, s.parking().For(s.id).Report(r), before(s.send))
	case stallBefore: // late work checks that it still has its lease
		return once.Do(ctx, s.world, s.asking().For(s.id).Report(r), before(func(ctx context.Context, _ once.Key) (string, error) {
			<-ctx.Done()
			return "", context.Cause(ctx)
		}))
	case stallAfter:
		return once.Do(ctx, s.world, s.asking().For(s.id).Report(r), func(ctx context.Context, key once.Key) (string, error) {
			answer, err := s.send(ctx, key)
			stop()
			return answer, err
		})
	case stallTx: // the database may have ended the transaction meanwhile: then it is repeated
		return s.finish(ctx, path{run: func(ctx context.Context, s *scene) (string, error) {
			return s.doTx(ctx, s.operation("inside").For(s.id).Report(r), s.put(1))
		}})
	}
	return "", fmt.Errorf("no such way to stall: %q", way)
}
