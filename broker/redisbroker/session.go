package redisbroker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/wake"
	"github.com/redis/go-redis/v9"
)

const (
	blockTime   = time.Second // how long a read waits, and how often returned entries are looked for
	readLimit   = 500         // entries of one read
	claimPage   = 100         // pending entries of one look
	renewPage   = 500         // entries that are renewed at once
	sweepFactor = 10          // times ClaimAfter: the age of sessions that are removed
	retryDelay  = 100 * time.Millisecond
)

var errClosed = errors.New("redisbroker: the session is closed")

// arrival is an entry that this session owns. The Tag of a delivery points to it.
type arrival struct {
	id          entryID
	deliveries  int
	fields      map[string]string
	redelivered bool
	dead        bool // its dead letter is stored
}

// readState is what a session may read.
type readState int

const (
	reading    readState = iota // what was left, and new entries
	standingBy                  // nothing, because another session may be the active one
	takingOver                  // what the last active session has left, before anything else
)

// session is a consumer of a group. It reads entries ahead, as many as fit into
// the window.
type session struct {
	*source
	options Options
	name    string // of the consumer
	client  redis.UniversalClient
	node    *redis.Client // the server of the stream, when the session was opened
	reader  *reader
	window  int
	doubt   entryID       // the last entry whose delivery the server may have forgotten
	wake    chan struct{} // wakes Receive
	room    chan struct{} // wakes the pump
	done    chan struct{} // closed when the session fails or is closed
	pumped  chan struct{} // closed when the pump has ended
	renewed chan struct{} // closed when entries are no longer renewed

	activated chan struct{} // closed when it becomes the active session

	// Only the pump uses these.
	state     readState
	position  string    // where the look for abandoned entries continues; empty: at the start
	lookAgain time.Time // when abandoned entries are looked for
	lookBack  time.Time // when returned entries are looked for
	highest   entryID   // of the new entries that were read

	mu      sync.Mutex
	all     map[entryID]*arrival // unsettled, with those that wait
	waiting []*arrival           // those that Receive has not returned yet
	broken  error
	closed  bool
}

var _ broker.DeadLetterer = (*session)(nil)

// Receive waits for messages.
func (s *session) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return wake.Receive(ctx, limit, s.wake, s.take)
}

// take returns up to n messages that have arrived.
func (s *session) take(n int) ([]broker.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	n = min(n, len(s.waiting))
	ds := make([]broker.Delivery, n)
	for i, a := range s.waiting[:n] {
		m := decode(s.stream, a.id, a.fields)
		m.Attempt = a.deliveries
		ds[i] = broker.Delivery{Message: m, Redelivered: a.redelivered, Origin: origin(s.stream, a.id), Tag: a}
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
	return ds, nil
}

// pump reads entries until the session ends.
func (s *session) pump() {
	defer close(s.pumped)
	if s.options.SingleActive {
		s.state = standingBy
	}
	for {
		n := s.awaitRoom()
		if n == 0 {
			return
		}
		if err := s.fetch(min(n, readLimit)); err != nil {
			s.fail(s.explain(err))
			return
		}
	}
}

// awaitRoom waits until the window has room, and returns how much. It returns 0
// when the session ends.
func (s *session) awaitRoom() int {
	return wake.Await(s.done, s.room, func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.window - len(s.all)
	})
}

// fetch gets up to n entries: those that others have left, and then new ones. It
// waits for a short time only.
func (s *session) fetch(n int) error {
	switch s.state {
	case standingBy:
		return s.standBy()
	case takingOver:
		return s.takeOver(n)
	}
	if now := time.Now(); s.position != "" || now.After(s.lookAgain) {
		got, err := s.claimAbandoned(n, s.options.ClaimAfter)
		if err != nil || got > 0 {
			return err
		}
	}
	if now := time.Now(); now.After(s.lookBack) {
		got, err := s.claimReturned(n)
		if err != nil || got > 0 {
			return err
		}
		s.lookBack = now.Add(blockTime)
	}
	if s.options.SingleActive {
		return s.readActive(n)
	}
	return s.read(n)
}

// run runs a script on the connection of the reader, so that its answers are of
// the server that the session has begun with.
func (s *session) run(script *redis.Script, args ...any) (any, error) {
	keys := []string{s.stream, activeKey(s.stream, s.group)}
	reply, err := script.Run(context.Background(), s.reader.client, keys, append([]any{s.group, s.name}, args...)...).Result()
	if err == nil || errors.Is(err, redis.Nil) {
		if moved := s.reader.same(); moved != nil {
			return nil, moved
		}
	}
	return reply, err
}

// claimAbandoned claims entries that no session has renewed for some time.
func (s *session) claimAbandoned(n int, idle time.Duration) (got int, err error) {
	from := s.position
	if from == "" {
		from = "-"
	}
	reply, err := s.run(claimAbandoned, idle.Milliseconds(), n, from, claimPage)
	if err != nil {
		return 0, err
	}
	c, err := parseClaimed(reply)
	if err != nil {
		return 0, err
	}
	if s.position = c.next; c.next == "" {
		s.lookAgain = time.Now().Add(s.options.ClaimAfter / 3)
		if _, err := s.run(sweepSessions, returnedConsumer, (sweepFactor * s.options.ClaimAfter).Milliseconds(), sessionPrefix); err != nil {
			return 0, err
		}
	}
	return len(c.entries), s.addClaimed(c)
}

// claimReturned claims entries that sessions have returned.
func (s *session) claimReturned(n int) (got int, err error) {
	reply, err := s.run(claimReturned, returnedConsumer, n)
	if err != nil {
		return 0, err
	}
	c, err := parseClaimed(reply)
	if err != nil {
		return 0, err
	}
	return len(c.entries), s.addClaimed(c)
}

// addClaimed adds entries that were delivered before. It returns an error if
// others were deleted, after it has added those that are there.
func (s *session) addClaimed(c claimed) error {
	for _, a := range c.entries {
		a.redelivered = true
	}
	s.add(c.entries)
	if len(c.deleted) > 0 {
		return fmt.Errorf("entries were deleted before they were handled, by XDEL or by trimming: %s. Their messages are lost: send them again",
			strings.Join(c.deleted, ", "))
	}
	return nil
}

// read reads new entries, and waits for the first one.
func (s *session) read(n int) error {
	streams, err := s.reader.client.XReadGroup(context.Background(), &redis.XReadGroupArgs{
		Group: s.group, Consumer: s.name, Streams: []string{s.stream, ">"}, Count: int64(n), Block: blockTime,
	}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return s.reader.same()
	case err != nil:
		return err
	}
	if err := s.reader.same(); err != nil {
		return err
	}
	var entries []*arrival
	for _, stream := range streams {
		for _, message := range stream.Messages {
			id, err := parseEntryID(message.ID)
			if err != nil {
				return err
			}
			a := &arrival{id: id, deliveries: 1, fields: make(map[string]string, len(message.Values))}
			for field, value := range message.Values {
				a.fields[field], _ = value.(string)
			}
			entries = append(entries, a)
		}
	}
	return s.addNew(entries)
}

// addNew adds entries that the server counts as new.
func (s *session) addNew(entries []*arrival) error {
	for _, a := range entries {
		if !a.id.after(s.highest) {
			return errors.New("the group has delivered an earlier entry again as a new one: it was recreated or moved back. Open another session")
		}
		s.highest = a.id
		a.redelivered = !a.id.after(s.doubt)
	}
	s.add(entries)
	return nil
}

// standBy makes this session the active one if there is none, and otherwise waits.
func (s *session) standBy() error {
	reply, err := s.run(activate, s.options.ClaimAfter.Milliseconds())
	if err != nil {
		return err
	}
	if reply == int64(1) {
		s.state = takingOver
		close(s.activated)
		return nil
	}
	timer := time.NewTimer(blockTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.done:
	}
	return nil
}

// takeOver claims what the last active session has left, in the order of the
// stream and however short ago it was renewed.
func (s *session) takeOver(n int) error {
	_, err := s.claimAbandoned(n, 0)
	if err == nil && s.position == "" {
		s.state = reading
	}
	return err
}

// errInactive ends a session that was stalled for longer than ClaimAfter.
var errInactive = errors.New("another session has become the active one. Open another session")

// readActive reads new entries if this is the active session, which the server
// checks in the same step, and otherwise waits for the next one.
func (s *session) readActive(n int) error {
	reply, err := s.run(readActive, n)
	switch {
	case errors.Is(err, redis.Nil):
		return errInactive
	case err != nil:
		return err
	}
	c, err := parseClaimed(reply)
	if err != nil {
		return err
	}
	if len(c.entries) > 0 {
		return s.addNew(c.entries)
	}
	_, err = s.reader.client.XRead(context.Background(), &redis.XReadArgs{Streams: []string{s.stream, c.next}, Count: 1, Block: blockTime}).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// add adds entries that this session owns.
func (s *session) add(entries []*arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range entries {
		s.all[a.id] = a
		s.waiting = append(s.waiting, a)
	}
	wake.Signal(s.wake)
}

// keep renews entries until the session ends.
func (s *session) keep(tick *time.Ticker) {
	defer close(s.renewed)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
			s.renew()
		}
	}
}

// renew renews all entries. If the server does not answer, it tries again with
// the next tick, and other sessions claim the entries after ClaimAfter.
func (s *session) renew() {
	ctx, cancel := context.WithTimeout(context.Background(), s.options.ClaimAfter/3)
	defer cancel()
	go func() { // a session that ends does not wait for the server
		select {
		case <-s.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	s.mu.Lock()
	as := slices.Collect(maps.Values(s.all))
	s.mu.Unlock()
	for page := range slices.Chunk(as, renewPage) {
		lost, err := s.change(ctx, renewEntries, idsOf(page))
		if err != nil {
			return
		}
		s.lose(page, lost)
	}
	s.stayActive(ctx)
}

// stayActive extends the time of the active session.
func (s *session) stayActive(ctx context.Context) {
	if !s.options.SingleActive {
		return
	}
	select {
	case <-s.activated:
	default:
		return
	}
	reply, err := activate.Run(ctx, s.client, []string{s.stream, activeKey(s.stream, s.group)},
		s.group, s.name, s.options.ClaimAfter.Milliseconds()).Int()
	if err == nil && reply == 0 {
		s.fail(s.explain(errInactive))
	}
}

// change runs a script that changes entries of this session, and returns those
// that are not its own.
func (s *session) change(ctx context.Context, script *redis.Script, ids []string, more ...any) (lost []string, err error) {
	args := append([]any{s.group, s.name}, more...)
	for _, id := range ids {
		args = append(args, id)
	}
	reply, err := script.Run(ctx, s.client, []string{s.stream, activeKey(s.stream, s.group)}, args...).Result()
	if err != nil {
		return nil, s.explain(err)
	}
	return parseStrings(reply)
}

// lose drops those of the entries that are named, because another session has
// claimed them. An entry that this session has meanwhile returned and claimed
// again is another arrival, and stays.
func (s *session) lose(as []*arrival, lost []string) {
	if len(lost) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range as {
		if slices.Contains(lost, a.id.String()) {
			s.drop(a)
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(a *arrival) bool { return s.all[a.id] != a })
	wake.Signal(s.room)
}

// drop removes an entry from the window. The mutex is held.
func (s *session) drop(a *arrival) {
	if s.all[a.id] == a {
		delete(s.all, a.id)
	}
}

// fail ends the session with the error of the first call.
func (s *session) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return
	}
	s.broken = err
	close(s.done)
	wake.Signal(s.wake)
}

// Close returns all unsettled entries, which other sessions then claim. If the
// server cannot be reached, they claim them after ClaimAfter.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.fail(errClosed)
	s.endRead(ctx)
	<-s.renewed
	err := s.leave(ctx)
	if redis.HasErrorPrefix(err, "NOGROUP") {
		err = nil // there is nothing to return
	}
	if err != nil {
		err = fmt.Errorf("redisbroker: %s: return unsettled entries: %w", s.Name(), err)
	}
	return errors.Join(err, s.disconnect())
}

// endRead waits until the pump has ended. The server ends a read that waits at
// once if the user has the right to CLIENT UNBLOCK, and otherwise after
// blockTime. If the connection were cut instead, the server might deliver to it
// after the entries were returned.
func (s *session) endRead(ctx context.Context) {
	retry := time.NewTicker(retryDelay)
	defer retry.Stop()
	for {
		_ = s.node.Do(ctx, "client", "unblock", strconv.FormatInt(s.reader.id, 10)).Err() // the read ends without it, too
		select {
		case <-s.pumped:
			return
		case <-ctx.Done():
			_ = s.reader.client.Close() // the pump ends with an error
			<-s.pumped
			return
		case <-retry.C: // the read may have begun after the request
		}
	}
}

// leave returns all entries of this session and removes it from the group.
func (s *session) leave(ctx context.Context) error {
	for {
		n, err := leaveGroup.Run(ctx, s.client, []string{s.stream, activeKey(s.stream, s.group)},
			s.group, s.name, returnedConsumer, claimPage).Int()
		if err != nil || n < claimPage {
			return err
		}
	}
}

// disconnect closes the connections of the session.
func (s *session) disconnect() error {
	var err error
	if s.reader != nil {
		err = s.reader.client.Close()
	}
	if errors.Is(err, redis.ErrClosed) {
		err = nil
	}
	return errors.Join(err, s.client.Close())
}
