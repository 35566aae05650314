package outbox

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// A relay that is present looks every lookGap. It begins calls of the publisher for
// presentFor after the beginning of its last successful look. Others take its lanes
// when it was missing from two looks that are missingFor apart.
//
// So a relay whose presence ends while its process runs, because a connection
// broke, begins no call once another relay has its lanes: its last successful look
// began before the end, and the first look in which it is missing ended after that.
//
// Its calls in progress end after presentFor, too, if it knows that its presence has
// ended. As long as a look has no answer, which on a busy machine is the more likely
// reason, they may take answerTime longer. Should another relay have its lanes by then,
// what these calls send are copies of what that relay sends in any case, from the
// first message of each ordering key on.
const (
	lookGap    = 300 * time.Millisecond
	presentFor = 1750 * time.Millisecond
	missingFor = 2 * time.Second
	answerTime = 1250 * time.Millisecond
	appearTime = 2 * time.Second // limits AppearRelay
	lookTime   = 5 * time.Second // limits Look

	// Where looks take long, they prove too little: the relay has its lanes by leases
	// alone. So many have to be slow in a row.
	slowLook  = presentFor / 2
	slowLooks = 3

	// leases that are not longer lapse as soon as presence would tell.
	shortLease = 2 * missingFor
)

// presence keeps this relay present, and looks whether the relays that have lanes
// are.
type presence struct {
	*env
	lanes   *lanes
	store   store.Presence // nil: only leases tell
	present store.Present  // nil: this relay is not present
	missing map[[16]byte]absence
	retry   time.Time // when to try to appear again
	losses  int       // since it was present for a while
	slow    int       // looks in a row that took long
}

// absence is how long another relay, which has lanes, has been missing.
type absence struct {
	since time.Time // the end of the first look
	said  bool
}

func newPresence(e *env, l *lanes) *presence {
	p := &presence{env: e, lanes: l}
	if e.Lease > shortLease {
		p.store, _ = once.As[store.Presence](e.Store)
	}
	return p
}

// begin makes the relay present before it leases its first lanes.
func (p *presence) begin(ctx context.Context) {
	p.appear(ctx)
	p.lanes.change()
}

// end ends the presence.
func (p *presence) end() {
	if p.present != nil {
		p.present.Close()
	}
}

// run looks until the lanes end.
func (p *presence) run(working context.Context) {
	for p.store != nil {
		begun := time.Now()
		if p.present != nil {
			p.look(working)
		} else if !begun.Before(p.retry) {
			p.appear(working)
		}
		timer := time.NewTimer(lookGap - time.Since(begun))
		select {
		case <-p.lanes.over:
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// appear tries to become present, under a new ID.
func (p *presence) appear(ctx context.Context) {
	if p.store == nil {
		return
	}
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, appearTime)
	defer cancel()
	present, err := p.store.AppearRelay(limited)
	switch {
	case errors.Is(err, once.ErrInvalid) || errors.Is(err, once.ErrClosed): // as others report
		p.postpone()
	case err != nil && ctx.Err() == nil:
		p.Logger.WarnContext(ctx, "outbox: if this process ends, others learn of it only when its leases lapse",
			logs.Spaced(""), "error", err)
		p.postpone()
	case err != nil:
	case present == nil:
		p.store = nil
	case time.Since(begun) > slowLook:
		present.Close()
		p.postpone()
	default:
		p.slow = 0
		p.present = present
		p.lanes.become(identity{present.ID(), proof{proved, begun.Add(presentFor)}})
	}
}

// postpone sets when the relay may appear again. What ends its presence again and
// again, such as a proxy, must not interrupt it all the time.
func (p *presence) postpone() {
	p.losses = min(p.losses+1, 6)
	p.retry = time.Now().Add(time.Second << p.losses)
}

// look renews the proof that this relay is present, and looks for others that are
// missing.
func (p *presence) look(working context.Context) {
	ctx, cancel := context.WithTimeout(working, lookTime)
	defer cancel()
	begun := time.Now()
	missing, err := p.present.Look(ctx, p.lanes.otherRelays())
	switch {
	case err != nil && working.Err() == nil:
		p.lose(working, err)
	case err == nil:
		p.lanes.prove(p.present.ID(), begun.Add(presentFor))
		if begun.Sub(p.retry) > time.Minute {
			p.losses = 0
		}
		p.note(missing, begun)
		p.pace(working, time.Since(begun))
	}
}

// pace ends the presence if looks take long.
func (p *presence) pace(working context.Context, took time.Duration) {
	if took <= slowLook {
		p.slow = 0
		return
	}
	if p.slow++; p.slow >= slowLooks {
		p.losses = max(p.losses, 1) // not again at once
		p.lose(working, fmt.Errorf("the store needs %v to tell which relays are present", took.Round(time.Millisecond)))
	}
}

// note notes the relays that are missing, as of a look that has just ended. One that
// has left, and has not died, is no longer among them once the leases are asked for
// again.
func (p *presence) note(missing [][16]byte, begun time.Time) {
	before := p.missing
	p.missing = make(map[[16]byte]absence)
	for _, relay := range missing {
		a, known := before[relay]
		switch {
		case !known:
			a.since = time.Now()
			signal(p.lanes.soon)
		case begun.Sub(a.since) >= missingFor:
			p.lanes.noteGone(goneRelay{relay, a.since})
		case !a.said:
			a.said = true
			p.Logger.InfoContext(context.Background(), "outbox: waiting for the lanes of another relay, whose process is gone",
				"relay", hex.EncodeToString(relay[:]), "free_in", (missingFor - begun.Sub(a.since)).Round(time.Millisecond))
		}
		p.missing[relay] = a
	}
}

// lose ends the presence of this relay, and begins another one, or continues
// without.
func (p *presence) lose(working context.Context, err error) {
	p.lanes.lose(p.present.ID())
	p.present.Close()
	p.present, p.missing = nil, nil
	p.Logger.WarnContext(working, "outbox: this relay can no longer show that it is present, and begins anew under another ID",
		"error", err)
	again := p.losses == 0
	p.postpone()
	if again {
		p.appear(working)
	}
	if p.present == nil {
		p.lanes.become(identity{id: name.Token()})
	}
}

// proof is what is known of the presence of this relay.
type proof struct {
	state proofState
	until time.Time // until when calls of the publisher may begin
}

type proofState int

const (
	unmarked proofState = iota // its ID promises no presence: only leases count
	proved
	lost // its ID must not lease lanes any more
)

// allows reports whether calls of the publisher may begin.
func (p proof) allows(now time.Time) bool {
	return p.state == unmarked || p.state == proved && now.Before(p.until)
}

// ends returns when calls of the publisher end at the latest.
func (p proof) ends() time.Time {
	if p.state == proved {
		return p.until.Add(answerTime)
	}
	return p.until
}

// identity is an ID of this relay, and its proof.
type identity struct {
	id    [16]byte
	proof proof
}

// goneRelay is a relay whose process has ended.
type goneRelay struct {
	id    [16]byte
	since time.Time // when it was first missing
}

// become makes the relay continue under another ID, as soon as no message is in
// progress.
func (l *lanes) become(next identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = &next
	signal(l.changed)
}

// change makes the relay continue under its next ID, if there is one. No message is
// in progress, and no lanes are being requested.
func (l *lanes) change() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		return
	}
	if l.asked {
		l.former = append(l.former, l.me())
	}
	l.id.Store(&l.next.id)
	l.proof, l.next, l.asked = l.next.proof, nil, false
	l.until, l.surplus = [store.Lanes]time.Time{}, [store.Lanes]bool{}
	signal(l.soon)
}

// releaseFormer releases the lanes of former IDs. What fails is tried again by the
// next call.
func (l *lanes) releaseFormer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.Lease/3)
	defer cancel()
	for {
		l.mu.Lock()
		former := l.former
		l.mu.Unlock()
		if len(former) == 0 {
			return
		}
		if err := l.Store.ReleaseLanes(ctx, former[0], nil); err != nil {
			l.Logger.WarnContext(ctx, "outbox: the lanes of a former ID could not be released", logs.Spaced(""), "error", err)
			return
		}
		l.mu.Lock()
		l.former = l.former[1:]
		l.mu.Unlock()
	}
}

// prove notes until when this relay is known to be present.
func (l *lanes) prove(id [16]byte, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.me() != id { // it is the next one
		return
	}
	if !l.proof.allows(time.Now()) {
		signal(l.changed)
	}
	l.proof = proof{proved, until}
}

// lose ends the use of an ID. Calls of the publisher may last as long as is proved.
func (l *lanes) lose(id [16]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.me() == id {
		l.proof.state = lost
	}
}

// begins is called before leases are requested, and reports whether they may be.
func (l *lanes) begins() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.proof.state == lost {
		return false
	}
	l.asked = true
	return true
}

// otherRelays returns the relays that had lanes when the leases were last asked for.
func (l *lanes) otherRelays() [][16]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.others)
}

// noteGone notes a relay whose lanes are to be released.
func (l *lanes) noteGone(r goneRelay) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = append(l.gone, r)
	signal(l.soon)
}

// freeGone releases the lanes of relays that are gone, as any number of relays may
// do at once. If it fails, the next look notes them again.
func (l *lanes) freeGone(ctx context.Context) {
	l.mu.Lock()
	gone := l.gone
	l.gone = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.Lease/3)
	defer cancel()
	for _, r := range gone {
		if err := l.Store.ReleaseLanes(ctx, r.id, nil); err != nil {
			l.Logger.WarnContext(ctx, "outbox: the lanes of a relay that is gone could not be released", logs.Spaced(""), "error", err)
			return
		}
		l.Logger.InfoContext(ctx, "outbox: the lanes of the other relay, whose process is gone, are free",
			"relay", hex.EncodeToString(r.id[:]), "after", time.Since(r.since).Round(time.Millisecond))
		l.mu.Lock()
		l.others = slices.DeleteFunc(l.others, func(id [16]byte) bool { return id == r.id })
		l.mu.Unlock()
	}
}
