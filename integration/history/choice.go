package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
)

// short returns long, or in one of three cases a time so short that it ends
// within the history.
func (c *client) short(long time.Duration) time.Duration {
	if c.patient || c.chance.IntN(3) > 0 {
		return long
	}
	return time.Duration(1+c.chance.Int64N(c.place.brief.Milliseconds())) * time.Millisecond
}

// request returns a new claim, which takes over the latest attempt that was
// seen if it is unknown, or repeats an earlier claim.
func (c *client) request(k once.Key) once.ClaimRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	if asked := c.asked[k]; len(asked) > 0 && c.chance.IntN(5) == 0 {
		return asked[c.chance.IntN(len(asked))]
	}
	r := once.ClaimRequest{Fence: once.Fence{Key: k, Owner: c.token()}, Lease: c.short(time.Hour)}
	r.Fingerprint = fmt.Appendf(nil, "input of %x", r.Owner)
	if fences := c.fences[k]; len(fences) > 0 && c.chance.IntN(4) > 0 {
		r.Attempt = fences[len(fences)-1].Attempt
	}
	return r
}

func (c *client) token() (t [16]byte) {
	c.count++
	binary.BigEndian.PutUint64(t[:], c.chance.Uint64())
	binary.BigEndian.PutUint32(t[8:], uint32(c.id))
	binary.BigEndian.PutUint32(t[12:], uint32(c.count))
	return t
}

// fence returns a fence that was seen, or a similar one that never existed.
func (c *client) fence(k once.Key) once.Fence {
	c.mu.Lock()
	defer c.mu.Unlock()
	fences := c.fences[k]
	if len(fences) == 0 {
		return once.Fence{Key: k, Owner: c.token(), Attempt: 1}
	}
	h := fences[len(fences)-1]
	switch c.chance.IntN(10) {
	case 0, 1:
		h = fences[c.chance.IntN(len(fences))]
	case 2:
		h.Attempt++
	case 3:
		h.Owner = c.token()
	}
	return h
}

func (c *client) ending() ending {
	switch c.chance.IntN(6) {
	case 0:
		return ending{status: once.Unknown}
	case 1:
		return ending{status: once.Parked}
	case 2, 3:
		return ending{status: once.Absent, keepKey: c.short(time.Hour)}
	default:
		c.count++
		e := ending{status: once.Done, outcome: fmt.Sprintf("%d-%d", c.id, c.count), keepOutcome: c.short(time.Hour)}
		e.keepKey = e.keepOutcome + c.short(time.Hour)
		return e
	}
}

func (c *client) maybeEnding() ending {
	if c.chance.IntN(4) == 0 {
		return ending{}
	}
	return c.ending()
}

// hint asks for a transaction that claims firmly, or for one that calls its body
// before it knows whether its claim is won.
func (c *client) hint(r *once.ClaimRequest, ends ending) {
	switch n := c.chance.IntN(4); {
	case n == 0:
		r.Firm = true
	case n < 3 && ends.status == once.Done:
		expected := ends.settlement(once.Fence{})
		expected.Outcome = once.Outcome{}
		r.Expected, r.Speculative = &expected, true
	}
}

// plan lets some calls of a store fail. Only one client calls it.
func (c *client) plan(call storetest.Call) storetest.Fault {
	switch n := c.chance.IntN(60); {
	case n < 2:
		return storetest.Fault{Request: errLost}
	case n < 4 && c.line != nil: // the line may have delayed the request, which the fault then hides
		return storetest.Fault{Reply: errLate}
	case n < 4:
		return storetest.Fault{Reply: errLost}
	case n == 4:
		return storetest.Fault{Undo: errLost}
	case n == 5:
		return storetest.Fault{Undo: once.ErrConflict}
	case n == 6:
		late := make(chan struct{})
		time.AfterFunc(time.Duration(1+c.chance.Int64N(int64(c.place.longest))), func() { close(late) })
		return storetest.Fault{Late: late, Reply: errLate}
	default:
		return storetest.Fault{}
	}
}

func ignoreFaults(err error) error {
	if errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrConflict) || isSilent(err) {
		return nil
	}
	return err
}
