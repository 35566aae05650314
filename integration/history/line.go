package history

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
)

// line is the network between one client and its service. It loses and delays
// requests after [line.disturb].
type line struct {
	longest time.Duration // of a delay
	repeats bool          // the client sends a request twice if it gets no reply, where it can

	mu     sync.Mutex
	chance *rand.Rand // nil: nothing goes wrong
	late   int        // requests that have not arrived yet
	idle   sync.Cond  // late has become 0
}

func newLine(longest time.Duration) *line {
	l := &line{longest: longest}
	l.idle.L = &l.mu
	return l
}

// mishap is what happens to a request.
type mishap int

const (
	none        mishap = iota
	loseRequest        // it never arrives
	loseReply          // it is answered, and the client does not learn that
	delay              // it arrives after its client has given up
	stall              // it arrives late, and its client waits
)

// errCut is the error of a client that has no reply.
var errCut = errors.New("cut off on purpose")

func isCut(err error) bool { return errors.Is(err, errCut) || isNATSCut(err) }

// isSilent reports whether err is that of a call that got no reply: it was cut
// off, or it took too long on a machine that is busy.
func isSilent(err error) bool {
	return isCut(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

// disturb has requests go wrong from now on.
func (l *line) disturb(chance *rand.Rand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chance = chance
}

// disturb has the requests of processes go wrong from now on.
func disturb(all []*process, seed uint64, round int) {
	for i, is := range all {
		if is.line != nil {
			is.line.disturb(rand.New(rand.NewPCG(seed+1, uint64(round*10+i))))
		}
	}
}

// calm waits until what processes have sent has arrived. They must not send any
// more.
func calm(all []*process) {
	for _, is := range all {
		if is.line != nil {
			is.line.calm()
		}
	}
}

// calm waits until no request is late. One that nobody waits for, such as that to
// delete a message, may still become so.
func (l *line) calm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.late > 0 {
		l.idle.Wait()
	}
}

// next returns what happens to a request, and how late it arrives.
func (l *line) next() (mishap, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.chance == nil {
		return none, 0
	}
	after := time.Duration(l.chance.Int64N(int64(l.longest)))
	switch n := l.chance.IntN(60); {
	case n < 1:
		return loseRequest, 0
	case n < 3:
		return loseReply, 0
	case n < 4:
		return delay, after
	case n < 5:
		return stall, after
	default:
		return none, 0
	}
}

// later makes a request that nobody waits for.
func (l *line) later(after time.Duration, request func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late++
	time.AfterFunc(after, func() {
		request()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.late--; l.late == 0 {
			l.idle.Broadcast()
		}
	})
}

// Do sends a request. It makes a line the HTTP client of the SDKs.
func (l *line) Do(r *http.Request) (*http.Response, error) {
	what, after := l.next()
	switch what {
	case loseRequest:
		return nil, errCut
	case delay:
		late, err := outliving(r)
		if err != nil {
			return nil, err
		}
		l.later(after, func() { discard(http.DefaultClient.Do(late)) })
		return nil, errCut
	case stall:
		if err := wait(r.Context(), after); err != nil {
			return nil, err
		}
	}
	response, err := http.DefaultClient.Do(r)
	if err == nil && what == loseReply {
		discard(response, nil)
		return nil, errCut
	}
	return response, err
}

// outliving returns a copy of a request that does not end with it.
func outliving(r *http.Request) (*http.Request, error) {
	late := r.Clone(context.WithoutCancel(r.Context()))
	if r.Body == nil {
		return late, nil
	}
	body, err := io.ReadAll(r.Body)
	late.Body = io.NopCloser(bytes.NewReader(body))
	return late, err
}

func discard(response *http.Response, err error) {
	if err == nil {
		_, _ = io.Copy(io.Discard, response.Body) // nobody wants it
		_ = response.Body.Close()
	}
}

// DialHook is that of the client.
func (l *line) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook is that of the client.
func (l *line) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook makes a line a [redis.Hook].
func (l *line) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		cut := func() error {
			cmd.SetErr(errCut)
			return errCut
		}
		what, after := l.next()
		switch what {
		case loseRequest:
			return cut()
		case delay:
			late := redis.NewCmd(context.WithoutCancel(ctx), cmd.Args()...)
			l.later(after, func() { _ = next(context.WithoutCancel(ctx), late) }) // nobody wants the reply
			return cut()
		case stall:
			if err := wait(ctx, after); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		err := next(ctx, cmd)
		if what == loseReply {
			return cut()
		}
		return err
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
