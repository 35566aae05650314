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

// ending is how a call ended, as a worker says it.
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

// The ways to stall: when, and in which work.
const (
	stallKey    = "key"    // before an effect that takes the key; what is unknown is sent again
	stallBefore = "before" // before an effect that can be asked about
	stallAfter  = "after"  // after it
	stallPark   = "park"   // before an effect of which nobody knows
	stallTx     = "tx"     // in a transaction, after its row was written
)

// stall stops this process in the middle of its work, until it is sent SIGCONT, and says how the work ended.
func (s *scene) stall(ctx context.Context, way string, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	stop := sync.OnceFunc(func() {
		s.betweenBeats(func() { // else it may stop with a lock in the database
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
			_, _ = lines.ReadString('\n') // this thread may go on for a moment before the signal is seen
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
	case stallBefore: // whoever can be late looks whether it still holds its lease
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
	case stallTx: // the database may have ended the transaction meanwhile, and then it is called again
		return s.finish(ctx, path{run: func(ctx context.Context, s *scene) (string, error) {
			return s.doTx(ctx, s.operation("inside").For(s.id).Report(r), s.put(1))
		}})
	}
	return "", fmt.Errorf("no such way to stall: %q", way)
}
