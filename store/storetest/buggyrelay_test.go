package storetest_test

import (
	"context"
	"slices"
	"time"

	"github.com/effectively-once/once/store"
)

// leases returns the current leases, as an unknown relay sees them.
func (s *sender) leases() store.Leases {
	watcher := [16]byte{0xff, 1}
	as, _ := s.Store.LeaseLanes(background, watcher, time.Hour, nil)
	_ = s.Store.ReleaseLanes(background, watcher, nil)
	as.Relays--
	return as
}

func (s *sender) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	if s.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	before := s.leases()
	steal := func(stolen func(lane int, l store.LaneLease) bool) {
		for lane, l := range before.Lanes {
			if slices.Contains(lanes, lane) && l.Relay != relay && stolen(lane, l) {
				_ = s.Store.ReleaseLanes(ctx, l.Relay, []int{lane})
			}
		}
	}
	switch s.bug {
	case "what is leased is taken":
		steal(func(int, store.LaneLease) bool { return true })
	case "lost lanes come back":
		steal(func(lane int, _ store.LaneLease) bool { return s.had(relay, lane) })
	case "looks, then leases":
		var free []int
		for _, lane := range lanes {
			if before.Lanes[lane].Left <= 0 {
				free = append(free, lane)
			}
		}
		if len(lanes) == store.Lanes { // in the race
			s.meet()
		}
		s.acting.Lock() // until the lanes are leased
		defer s.acting.Unlock()
		before = s.leases()
		lanes = free
		steal(func(int, store.LaneLease) bool { return true })
	case "extends what was not named":
		for lane, l := range before.Lanes {
			if l.Relay == relay && !slices.Contains(lanes, lane) {
				lanes = append(slices.Clone(lanes), lane)
			}
		}
	case "lapsed is never taken":
		lanes = slices.DeleteFunc(slices.Clone(lanes), func(lane int) bool {
			return before.Lanes[lane].Relay != [16]byte{} && before.Lanes[lane].Relay != relay
		})
	case "alive for ever":
		s.note(relay, -1)
	}
	for _, lane := range lanes {
		s.note(relay, lane)
	}
	as, err := s.Store.LeaseLanes(ctx, relay, ttl, lanes)
	return s.spoilLeases(as), err
}

func (s *sender) spoilLeases(as store.Leases) store.Leases {
	switch s.bug {
	case "lapsed is nobody's at once":
		for lane, l := range as.Lanes {
			if l.Left <= 0 {
				as.Lanes[lane] = store.LaneLease{}
			}
		}
	case "alive by its lanes":
		relays := make(map[[16]byte]bool)
		for _, l := range as.Lanes {
			relays[l.Relay] = true
		}
		delete(relays, [16]byte{})
		as.Relays = len(relays)
	case "alive for ever":
		s.mu.Lock()
		defer s.mu.Unlock()
		as.Relays = 0
		for at := range s.leased {
			if at.lane < 0 {
				as.Relays++
			}
		}
	}
	return as
}

// leased is a lane that a relay once leased. A lane below 0 stands for the
// relay being alive.
type leased struct {
	relay [16]byte
	lane  int
}

func (s *sender) note(relay [16]byte, lane int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leased[leased{relay, lane}] = true
}

func (s *sender) had(relay [16]byte, lane int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leased[leased{relay, lane}]
}

func (s *sender) ReleaseLanes(ctx context.Context, relay [16]byte, lanes []int) error {
	switch s.bug {
	case "context ignored":
		ctx = context.WithoutCancel(ctx)
	case "releases everything":
		lanes = nil
	case "releases what others have":
		for _, lane := range lanes {
			_ = s.Store.ReleaseLanes(ctx, s.leases().Lanes[lane].Relay, []int{lane})
		}
	case "released and still alive":
		if lanes == nil {
			for lane := range store.Lanes {
				lanes = append(lanes, lane)
			}
		}
	case "alive for ever":
		if s.mu.Lock(); lanes == nil {
			delete(s.leased, leased{relay, -1})
		}
		s.mu.Unlock()
	}
	return s.Store.ReleaseLanes(ctx, relay, lanes)
}

// may returns the relay and the messages of a change, as the bug has them.
func (s *sender) may(relay [16]byte, ms []store.Outgoing) ([16]byte, []store.Outgoing) {
	as := s.leases()
	lane := func(m store.Outgoing) store.LaneLease {
		if m.Lane < 0 || m.Lane >= store.Lanes {
			return store.LaneLease{}
		}
		return as.Lanes[m.Lane]
	}
	people := [16]byte{}
	switch s.bug {
	case "no fence":
		return people, ms
	case "what is nobody's is anyones":
		if !slices.ContainsFunc(ms, func(m store.Outgoing) bool { return lane(m).Relay != people }) {
			return people, ms
		}
	case "all lanes or nothing":
		if relay != people && slices.ContainsFunc(ms, func(m store.Outgoing) bool { return lane(m).Relay != relay }) {
			return relay, nil
		}
	case "lapsed is lost":
		if relay != people {
			ms = slices.DeleteFunc(slices.Clone(ms), func(m store.Outgoing) bool { return lane(m).Left <= 0 })
		}
	case "people need a lease":
		if relay == people {
			ms = nil
		}
	case "known in any state":
		ms = slices.Clone(ms)
		for i := range ms {
			ms[i].State = s.stateOf(ms[i])
		}
	}
	return relay, ms
}

func (s *sender) stateOf(m store.Outgoing) store.OutgoingState {
	for state := store.Pending; state <= store.Published && m.Lane < store.Lanes; state++ {
		q := store.OutgoingQuery{State: state, Lanes: []int{m.Lane}, After: m.Seq - 1, Limit: 1}
		if ms, _ := s.Store.Outgoing(background, q); len(ms) > 0 && ms[0].Seq == m.Seq {
			return state
		}
	}
	return m.State
}

func (s *sender) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	if s.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	given := ms
	relay, ms = s.may(relay, ms)
	switch s.bug {
	case "kept is deleted":
		if then == store.Keep {
			then = store.Delete
		}
	case "deleted is kept":
		if then == store.Delete {
			then = store.Keep
		}
	case "archived in place":
		if then == store.Archive {
			then = store.Keep
		}
	case "only what is pending is sent":
		ms = slices.DeleteFunc(slices.Clone(ms), func(m store.Outgoing) bool { return m.State != store.Pending })
	case "looks, then sends":
		there := 0
		for _, m := range ms {
			if s.stateOf(m) == m.State && s.isThere(m) {
				there++
			}
		}
		s.hesitate()
		_, err := s.Store.Sent(ctx, relay, ms, then)
		return there, err
	case "Sent loses a row":
		s.mu.Lock()
		if s.sends++; s.sends%3 == 0 && len(ms) > 1 {
			ms = ms[:len(ms)-1]
		}
		s.mu.Unlock()
	}
	n, err := s.Store.Sent(ctx, relay, ms, then)
	return s.count(n, given), err
}

func (s *sender) isThere(m store.Outgoing) bool {
	q := store.OutgoingQuery{State: m.State, Lanes: []int{m.Lane}, After: m.Seq - 1, Limit: 1}
	ms, _ := s.Store.Outgoing(background, q)
	return len(ms) > 0 && ms[0].Seq == m.Seq
}

func (s *sender) count(n int, given []store.Outgoing) int {
	if s.has("as many as were given") {
		return len(given)
	}
	return n
}

func (s *sender) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing,
	to store.OutgoingState) (int, error) {

	if s.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	given := ms
	relay, ms = s.may(relay, ms)
	ms = slices.Clone(ms)
	for i := range ms {
		switch s.bug {
		case "reason dropped":
			ms[i].Reason = ""
		case "attempts dropped":
			ms[i].Attempts = 0
		case "reason of the first":
			ms[i].Reason, ms[i].Attempts = ms[0].Reason, ms[0].Attempts
		case "moved to be due at once":
			ms[i].Delay = 0
		}
	}
	if s.has("stuck for ever") {
		ms = slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.State == store.Stuck })
	}
	n, err := s.Store.MoveOutgoing(ctx, relay, ms, to)
	return s.count(n, given), err
}

func (s *sender) DecidedOutgoing(ctx context.Context, onlyStuck bool) ([]store.Outgoing, error) {
	if s.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	ms, err := s.Store.DecidedOutgoing(ctx, onlyStuck)
	return slices.DeleteFunc(ms, func(m store.Outgoing) bool {
		return s.bug == "a park is not seen" && m.State == store.Stuck || s.bug == "a replay is not seen" && m.State == store.Held
	}), err
}

func (s *sender) RemoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing) (int, error) {
	if s.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	given := ms
	relay, ms = s.may(relay, ms)
	if s.has("removes what is pending") {
		ms = slices.DeleteFunc(slices.Clone(ms), func(m store.Outgoing) bool { return m.State != store.Pending })
	}
	n, err := s.Store.RemoveOutgoing(ctx, relay, ms)
	return s.count(n, given), err
}

func (s *sender) ForgetOutgoing(ctx context.Context, keep time.Duration, limit int) (int, error) {
	switch {
	case s.has("context ignored"):
		ctx = context.WithoutCancel(ctx)
	case s.has("forgets early"):
		keep = -1 // also what has changed just now
	case s.has("forgets without a limit") && limit > 0:
		n, err := s.Store.ForgetOutgoing(ctx, keep, 1000)
		return min(n, limit), err
	case s.has("forgets by when it was put"):
		ms, _ := s.Store.Outgoing(ctx, store.OutgoingQuery{State: store.Published, Limit: limit})
		young := func(m store.Outgoing) bool { return time.Since(m.Created) <= keep }
		return s.Store.RemoveOutgoing(ctx, [16]byte{}, slices.DeleteFunc(ms, young))
	case s.has("forgets whatever the limit"):
		limit = max(limit, 1)
	case s.has("forgets what is stuck") && keep == 0 && limit > 0:
		stuck, _ := s.Store.Outgoing(ctx, store.OutgoingQuery{State: store.Stuck, Limit: 1})
		_, _ = s.Store.RemoveOutgoing(ctx, [16]byte{}, stuck)
	}
	return s.Store.ForgetOutgoing(ctx, keep, limit)
}

func (s *sender) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState,
	limit int) (int, time.Duration, error) {

	switch s.bug {
	case "context ignored":
		ctx = context.WithoutCancel(ctx)
	case "no fence", "wakes without a lease":
		relay = [16]byte{}
	case "woken is pending":
		to = store.Pending
	case "wakes without a limit":
		n, next, err := s.Store.WakeDelayed(ctx, relay, to, 1000)
		return min(n, limit), next, err
	case "wakes early":
		ms, _ := s.Store.Outgoing(ctx, store.OutgoingQuery{State: store.Delayed, Limit: limit})
		n, err := s.Store.MoveOutgoing(ctx, relay, ms, to)
		return n, time.Hour, err
	case "woken is new":
		due, _ := s.Store.Outgoing(ctx, store.OutgoingQuery{State: store.Delayed})
		due = slices.DeleteFunc(due, func(m store.Outgoing) bool { return m.Delay > 0 })
		for i := range due {
			due[i].Attempts, due[i].Reason = 0, ""
		}
		n, err := s.Store.MoveOutgoing(ctx, relay, due, to)
		_, next, _ := s.Store.WakeDelayed(ctx, relay, to, 0)
		return n, next, err
	}
	n, next, err := s.Store.WakeDelayed(ctx, relay, to, limit)
	switch s.bug {
	case "next is in an hour":
		next = time.Hour
	case "next is far":
		if next == time.Hour {
			next = 3 * time.Hour
		}
	case "next of all lanes":
		_, next, _ = s.Store.WakeDelayed(ctx, [16]byte{}, to, 0)
	}
	return n, next, err
}

// quietEar is an ear with a bug.
type quietEar struct {
	store.Ear
	s     *sender
	heard int
}

func (s *sender) HearOutbox(ctx context.Context) (store.Ear, error) {
	e, err := s.Store.HearOutbox(ctx)
	return &quietEar{Ear: e, s: s}, err
}

func (e *quietEar) Wait(ctx context.Context) error {
	never := e.s.has("rings never") || e.s.has("rings once") && e.heard > 0
	if e.s.has("hears what comes later") { // but not messages since the last Wait
		ended, cancel := context.WithCancel(ctx)
		cancel()
		for range 10 { // which of the two it takes is random
			_ = e.Ear.Wait(ended)
		}
	}
	if e.s.has("a ring lost with its Wait") && ctx.Err() != nil {
		for range 10 {
			_ = e.Ear.Wait(ctx)
		}
		return ctx.Err()
	}
	if never {
		<-ctx.Done()
		return ctx.Err()
	}
	err := e.Ear.Wait(ctx)
	if err == nil {
		e.heard++
	}
	return err
}
