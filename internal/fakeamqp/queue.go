package fakeamqp

import (
	"cmp"
	"crypto/rand"
	"slices"
	"strings"
	"time"
)

// QueueOptions configures a queue, or a topic with its subscriptions.
type QueueOptions struct {
	LockDuration time.Duration // default: a minute
	MaxDelivery  int           // deliveries after which a message is dead-lettered; default: 10
	DedupWindow  time.Duration // of duplicate detection; default: none
	Sessions     bool          // whether messages and receivers need a session

	// Partitioned makes duplicate detection compare messages of one partition only,
	// whose key is that of the transfer: the session, the partition key, or the ID.
	Partitioned bool
}

type entryState int32

const (
	active    entryState = 0
	deferred  entryState = 1
	scheduled entryState = 2
)

// entry is a message of a queue.
type entry struct {
	m      *message
	seq    int64
	count  uint32 // of the deliveries that have failed
	at     time.Time
	due    time.Time // when a scheduled message becomes active
	annot  Map
	sess   string
	state  entryState
	token  UUID // in the order of the wire, which is the delivery tag
	until  time.Time
	holder *link // which has locked it
}

type queue struct {
	srv      *Server
	name     string
	o        QueueOptions
	dlq      *queue
	list     []*entry            // in the order of their sequence numbers
	sessions map[string][]*entry // the same messages by their session
	seq      int64
	seen     map[string]time.Time
	readers  []*link
	accepts  []*accept // that wait for a session
	sessLock map[string]*link
	sessTill map[string]time.Time
	sessData map[string][]byte
}

// accept is an attach that waits until any session has messages and is free.
type accept struct {
	l     *link
	src   Desc
	until time.Time
	reply func(source any, props Map, fail Desc)
}

// CreateQueue creates a queue and its dead-letter queue.
func (s *Server) CreateQueue(name string, o QueueOptions) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.create(name, o)
}

func (s *Server) create(name string, o QueueOptions) {
	if o.LockDuration == 0 {
		o.LockDuration = time.Minute
	}
	if o.MaxDelivery == 0 {
		o.MaxDelivery = 10
	}
	q := s.add(name, o)
	q.dlq = s.add(name+"/$DeadLetterQueue", QueueOptions{LockDuration: o.LockDuration, MaxDelivery: 1 << 30})
}

func (s *Server) add(name string, o QueueOptions) *queue {
	q := &queue{srv: s, name: name, o: o, seen: map[string]time.Time{}, sessions: map[string][]*entry{}, sessLock: map[string]*link{}, sessTill: map[string]time.Time{}, sessData: map[string][]byte{}}
	s.queues[name] = q
	return q
}

// DeleteQueue deletes a queue with its dead letters. Its receivers are detached,
// and those that wait for a session are refused.
func (s *Server) DeleteQueue(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := amqpErr("amqp:not-found", "The messaging entity '"+name+"' could not be found.")
	q := s.queues[name]
	delete(s.queues, name)
	delete(s.queues, q.dlq.name)
	for _, l := range slices.Concat(q.readers, q.dlq.readers) {
		l.detach(gone)
	}
	for _, a := range q.accepts {
		a.reply(nil, nil, gone)
	}
	q.accepts = nil
}

// CreateTopic creates a topic with subscriptions that take every message.
func (s *Server) CreateTopic(topic string, o QueueOptions, subs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topics[topic] = []string{}
	for _, n := range subs {
		p := topic + "/Subscriptions/" + n
		s.create(p, o)
		s.topics[topic] = append(s.topics[topic], p)
	}
}

// Len returns how many messages a queue, a subscription ("topic/Subscriptions/s")
// or a dead-letter queue ("queue/$DeadLetterQueue") has, whatever their state.
func (s *Server) Len(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queues[path].list)
}

// TakeLocks takes the locks of all messages and sessions of a queue from those who
// have them, as the service does when it moves a queue to another node. It counts
// as a delivery that has failed.
func (s *Server) TakeLocks(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[path]
	q.expire(s.now().Add(1000 * time.Hour))
	q.pump()
}

// TakeSession takes the lock of one session of a queue, as TakeLocks does.
func (s *Server) TakeSession(path, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[path]
	q.endSession(id)
	q.pump()
}

// DetachReceivers ends the links of all receivers of a queue with a condition.
func (s *Server) DetachReceivers(path, condition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Clone(s.queues[path].readers) {
		l.detach(amqpErr(condition, "The link was detached."))
	}
}

// IsLocked reports whether a receiver has a session of a queue.
func (s *Server) IsLocked(path, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queues[path].sessLock[id] != nil
}

// send puts the messages of a transfer into a queue, or into all subscriptions of a
// topic.
func (s *Server) send(addr string, outer *message, ms []*message) (fail Desc) {
	to := s.topics[addr]
	if q := s.queues[addr]; q != nil {
		to = []string{addr}
	}
	for _, name := range to {
		if fail := s.queues[name].check(outer, ms); fail.Code != 0 {
			return fail
		}
	}
	for _, name := range to {
		q := s.queues[name]
		for _, m := range ms {
			if !q.duplicate(outer, m) {
				q.add(m)
			}
		}
		q.pump()
	}
	return Desc{}
}

// check refuses a transfer as a whole.
func (q *queue) check(outer *message, ms []*message) Desc {
	for _, m := range ms {
		if _, ok := m.prop(10).(string); q.o.Sessions && !ok {
			return amqpErr("amqp:not-allowed", "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have session support enabled can only receive messages that have the SessionId set to a valid value.")
		}
		if q.o.Partitioned && explicitPartition(m) != explicitPartition(outer) {
			return amqpErr("amqp:not-allowed", "All messages of a batch must have the same partition key or session.")
		}
	}
	return Desc{}
}

// explicitPartition returns the partition key that a sender has set.
func explicitPartition(m *message) string {
	if id, ok := m.prop(10).(string); ok {
		return id
	}
	key, _ := m.Annot.Get("x-opt-partition-key").(string)
	return key
}

// duplicate reports whether duplicate detection drops a message, which its sender
// takes for accepted, and remembers it otherwise.
func (q *queue) duplicate(outer, m *message) bool {
	id, ok := m.prop(0).(string)
	if !ok || q.o.DedupWindow <= 0 {
		return false
	}
	if q.o.Partitioned {
		partition := explicitPartition(outer)
		if partition == "" { // the ID of the first message of a batch is that of the batch
			partition, _ = outer.prop(0).(string)
		}
		id = partition + "\x00" + id
	}
	now := q.srv.now()
	if at, dup := q.seen[id]; dup && now.Sub(at) < q.o.DedupWindow {
		return true
	}
	q.seen[id] = now
	return false
}

func (q *queue) add(m *message) *entry {
	q.seq++
	now := q.srv.now()
	e := &entry{m: m, seq: q.seq, at: now, annot: slices.Clone(m.Annot)}
	e.sess, _ = m.prop(10).(string)
	if t, ok := e.annot.Get("x-opt-scheduled-enqueue-time").(time.Time); ok && t.After(now) {
		e.state, e.due = scheduled, t
	}
	q.list = append(q.list, e)
	q.sessions[e.sess] = append(q.sessions[e.sess], e)
	return e
}

// remove removes a message, unless it was removed before.
func (q *queue) remove(e *entry) {
	q.list = without(q.list, e.seq)
	if q.sessions[e.sess] = without(q.sessions[e.sess], e.seq); len(q.sessions[e.sess]) == 0 {
		delete(q.sessions, e.sess)
	}
}

// without deletes the message with a sequence number from a list.
func without(list []*entry, seq int64) []*entry {
	i, found := slices.BinarySearchFunc(list, seq, func(e *entry, seq int64) int { return cmp.Compare(e.seq, seq) })
	if !found {
		return list
	}
	return slices.Delete(list, i, i+1)
}

// free ends the lock of a message. If its delivery has failed, the last of them
// dead-letters it.
func (q *queue) free(e *entry, failed bool) {
	e.holder, e.until = nil, time.Time{}
	if !failed {
		return
	}
	if e.count++; int(e.count) >= q.o.MaxDelivery {
		q.kill(e, "MaxDeliveryCountExceeded", "Message could not be consumed after max delivery attempts.")
	}
}

// kill moves a message to the dead-letter queue.
func (q *queue) kill(e *entry, reason, description any) {
	q.remove(e)
	if q.dlq == nil {
		return
	}
	m := *e.m
	m.App = slices.Clone(m.App)
	if reason != nil {
		m.App.Set("DeadLetterReason", reason)
	}
	if description != nil {
		m.App.Set("DeadLetterErrorDescription", description)
	}
	m.rawApp = nil
	dead := q.dlq.add(&m)
	dead.count, dead.state = e.count, active
	dead.annot.Set(Sym("x-opt-deadletter-source"), q.name)
	q.dlq.pump()
}

// tick does what is due.
func (q *queue) tick(now time.Time) {
	for _, e := range q.list {
		if e.state == scheduled && !e.due.After(now) {
			e.state, e.at = active, now
		}
	}
	q.expire(now)
	for _, a := range slices.Clone(q.accepts) {
		if now.After(a.until) {
			q.forget(a.l)
			a.reply(nil, nil, amqpErr("com.microsoft:timeout", "The operation did not complete within the allotted timeout."))
		}
	}
	q.pump()
}

// expire ends locks.
func (q *queue) expire(now time.Time) {
	if !q.o.Sessions {
		for _, e := range slices.Clone(q.list) {
			if e.holder != nil && now.After(e.until) {
				q.free(e, true)
			}
		}
	}
	for id, until := range q.sessTill {
		if now.After(until) {
			q.endSession(id)
		}
	}
}

// endSession ends the lock of a session, and the link that has it.
func (q *queue) endSession(id string) {
	l := q.sessLock[id]
	q.leave(l, true)
	l.detach(amqpErr("com.microsoft:session-lock-lost", goneSession))
}

// attach answers a receiver, at once or, if it takes any session, once there is one.
func (q *queue) attach(l *link, src Desc, reply func(source any, props Map, fail Desc)) {
	if !q.o.Sessions {
		q.readers = append(q.readers, l)
		reply(src, nil, Desc{})
		q.pump()
		return
	}
	f, _ := src.V.([]any)[7].(Map)
	filter, ok := f.Get("com.microsoft:session-filter").(Desc)
	if !ok {
		reply(nil, nil, amqpErr("amqp:not-allowed", "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."))
		return
	}
	a := &accept{l: l, src: src, until: q.srv.now().Add(l.timeout), reply: reply}
	id, named := filter.V.(string)
	switch {
	case !named:
		q.accepts = append(q.accepts, a)
		q.pump()
	case q.sessLock[id] != nil:
		reply(nil, nil, amqpErr("com.microsoft:session-cannot-be-locked", "The requested session '"+id+"' cannot be accepted. It may be locked by another receiver."))
	default:
		q.give(a, id)
		q.pump()
	}
}

// give locks a session for a receiver.
func (q *queue) give(a *accept, id string) {
	until := q.srv.now().Add(q.o.LockDuration)
	a.l.sessID, q.sessLock[id], q.sessTill[id] = &id, a.l, until
	q.readers = append(q.readers, a.l)
	fields := slices.Clone(a.src.V.([]any))
	filter := fields[7].(Map).Get("com.microsoft:session-filter").(Desc)
	filter.V = id
	fields[7] = Map{{Sym("com.microsoft:session-filter"), filter}}
	const unixEpoch = 621355968000000000 // in ticks of .NET, which are 100 ns
	a.reply(Desc{Code: 0x28, V: fields}, Map{{Sym("com.microsoft:locked-until-utc"), until.UnixNano()/100 + unixEpoch}}, Desc{})
}

// freeSession returns a session that has messages and no receiver: the one whose
// first message is the oldest.
func (q *queue) freeSession() (string, bool) {
	for _, e := range q.list {
		if e.state == active && q.sessLock[e.sess] == nil {
			return e.sess, true
		}
	}
	return "", false
}

// detach ends what a link holds. Messages without a session stay locked until
// their time is over. A session is free at once, and does not count what was not
// settled as a failed delivery.
func (q *queue) detach(l *link) {
	q.forget(l)
	q.readers = slices.DeleteFunc(q.readers, func(x *link) bool { return x == l })
	q.leave(l, false)
	q.pump()
}

func (q *queue) forget(l *link) {
	q.accepts = slices.DeleteFunc(q.accepts, func(a *accept) bool { return a.l == l })
}

// leave ends the lock of a session, if the link has one.
func (q *queue) leave(l *link, failed bool) {
	if l.sessID == nil || q.sessLock[*l.sessID] != l {
		return
	}
	delete(q.sessLock, *l.sessID)
	delete(q.sessTill, *l.sessID)
	for _, e := range slices.Clone(q.sessions[*l.sessID]) {
		if e.holder == l {
			q.free(e, failed)
		}
	}
}

// pump gives sessions and messages to those who wait.
func (q *queue) pump() {
	for len(q.accepts) > 0 {
		id, ok := q.freeSession()
		if !ok {
			break
		}
		a := q.accepts[0]
		q.accepts = q.accepts[1:]
		q.give(a, id)
	}
	for sent := true; sent; { // one message for each receiver in turn
		sent = false
		for _, l := range slices.Clone(q.readers) {
			if e := q.next(l); e != nil {
				b := q.lock(e, l)
				l.deliver(e.token[:], b, e)
				sent = true
			}
		}
	}
}

func (q *queue) next(l *link) *entry {
	if !l.canSend() {
		return nil
	}
	list := q.list
	if l.sessID != nil {
		list = q.sessions[*l.sessID]
	}
	for _, e := range list {
		if e.state == active && e.holder == nil {
			return e
		}
	}
	return nil
}

// lock locks a message for a link and returns it as it is sent.
func (q *queue) lock(e *entry, l *link) []byte {
	rand.Read(e.token[:])
	a := q.annotations(e)
	if l.settled {
		q.remove(e)
	} else {
		e.holder, e.until = l, q.srv.now().Add(q.o.LockDuration)
		a.Set(Sym("x-opt-locked-until"), e.until)
	}
	return e.m.encode(e.count, a)
}

func (q *queue) annotations(e *entry) Map {
	a := slices.Clone(e.annot)
	a.Set(Sym("x-opt-sequence-number"), e.seq)
	a.Set(Sym("x-opt-enqueue-sequence-number"), e.seq)
	a.Set(Sym("x-opt-enqueued-time"), e.at)
	a.Set(Sym("x-opt-message-state"), int32(e.state))
	return a
}

// lost is the condition of an error that says that a lock is gone.
func (q *queue) lost() string {
	if q.o.Sessions {
		return "com.microsoft:session-lock-lost"
	}
	return "com.microsoft:message-lock-lost"
}

// holds reports whether a message is still locked.
func (q *queue) holds(e *entry, l *link) bool {
	now := q.srv.now()
	if e.holder == nil || e.holder != l {
		return false
	}
	if q.o.Sessions {
		return q.sessLock[e.sess] == l && !now.After(q.sessTill[e.sess])
	}
	return !now.After(e.until)
}

var outcomes = map[uint64]string{0x24: "completed", 0x25: "dead-lettered", 0x26: "released", 0x27: "abandoned"}

// settle applies an outcome. It is not ok if the lock is gone. The client hears of
// it unless answer is false.
func (q *queue) settle(e *entry, l *link, token UUID, st Desc) (ok, answer bool) {
	f, _ := st.V.([]any)
	outcome := outcomes[st.Code]
	if st.Code == 0x27 && len(f) > 1 && f[1] == true {
		outcome = "deferred"
	}
	apply, answer := true, true
	if q.srv.OnDisposition != nil {
		apply, answer = q.srv.OnDisposition(q.name, outcome)
	}
	if !apply {
		return true, answer
	}
	if !q.holds(e, l) || e.token != token {
		return false, answer
	}
	switch outcome {
	case "completed":
		q.remove(e)
	case "dead-lettered":
		reason, description := deadLetterInfo(f)
		q.free(e, false)
		q.kill(e, reason, description)
	case "released":
		q.free(e, false)
	case "deferred":
		e.state = deferred
		q.free(e, false)
	case "abandoned":
		q.free(e, true)
	}
	q.pump()
	return true, answer
}

func deadLetterInfo(f []any) (reason, description any) {
	if len(f) > 0 {
		if x, ok := f[0].(Desc); ok {
			if ef, _ := x.V.([]any); len(ef) > 2 {
				info, _ := ef[2].(Map)
				return info.Get("DeadLetterReason"), info.Get("DeadLetterErrorDescription")
			}
		}
	}
	return nil, nil
}

// swap turns the order of bytes of a GUID of .NET into that of RFC 9562, and back.
func swap(u UUID) UUID {
	u[0], u[3], u[1], u[2], u[4], u[5], u[6], u[7] = u[3], u[0], u[2], u[1], u[5], u[4], u[7], u[6]
	return u
}

// byToken returns the message that a lock token locks.
func (q *queue) byToken(t any) *entry {
	u, _ := t.(UUID)
	for _, e := range q.list {
		if e.token == swap(u) && q.holds(e, e.holder) {
			return e
		}
	}
	return nil
}

// holder returns the link of this connection that a request names, if it has the
// session.
func (s *session) holder(q *queue, m *message, id string) *link {
	name, _ := m.App.Get("associated-link-name").(string)
	for _, other := range s.c.sess {
		for _, l := range other.links {
			if l.name == name && l.q == q && q.sessLock[id] == l && !q.srv.now().After(q.sessTill[id]) {
				return l
			}
		}
	}
	return nil
}

const (
	goneMessage = "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
	goneSession = "The session lock has expired on the session receiver."
)

// manage answers the $management operations that the client uses.
func (s *session) manage(addr string, m *message) (code int32, text string, value any, answer bool) {
	srv := s.c.s
	op, _ := m.App.Get("operation").(string)
	if op == "READ" {
		code, text, value = srv.manageHub(m)
		return code, text, value, true
	}
	in, _ := m.Value.(Map)
	list := func(k string) []any { l, _ := in.Get(k).([]any); return l }
	if op == "com.microsoft:schedule-message" || op == "com.microsoft:cancel-scheduled-message" {
		code, text, value = srv.manageScheduled(addr, op, list)
		return code, text, value, true
	}
	q := srv.queues[addr]
	if q == nil {
		return 404, "entity not found", nil, true
	}
	now, id := srv.now(), ""
	if strings.Contains(op, "session") {
		id, _ = in.Get("session-id").(string)
		if s.holder(q, m, id) == nil {
			return 410, goneSession, nil, true
		}
	}
	switch op {
	case "com.microsoft:renew-lock":
		var out []time.Time
		for _, t := range list("lock-tokens") {
			e := q.byToken(t)
			if e == nil {
				return 410, goneMessage, nil, true
			}
			e.until = now.Add(q.o.LockDuration)
			out = append(out, e.until)
		}
		return 200, "OK", Map{{"expirations", out}}, true
	case "com.microsoft:renew-session-lock":
		q.sessTill[id] = now.Add(q.o.LockDuration)
		return 200, "OK", Map{{"expiration", q.sessTill[id]}}, true
	case "com.microsoft:set-session-state":
		q.sessData[id], _ = in.Get("session-state").([]byte)
		return 200, "OK", nil, true
	case "com.microsoft:get-session-state":
		var v any
		if b := q.sessData[id]; b != nil {
			v = b
		}
		return 200, "OK", Map{{"session-state", v}}, true
	case "com.microsoft:update-disposition":
		return q.manageSettle(in, list("lock-tokens"))
	case "com.microsoft:peek-message":
		from, _ := in.Get("from-sequence-number").(int64)
		most, _ := in.Get("message-count").(int32)
		out := []any{}
		for _, e := range q.list {
			if e.seq >= from && len(out) < int(most) {
				out = append(out, Map{{"message", e.m.encode(e.count, q.annotations(e))}})
			}
		}
		return messagesReply(out)
	case "com.microsoft:receive-by-sequence-number":
		out := []any{}
		for _, n := range list("sequence-numbers") {
			for _, e := range q.list {
				if e.state == deferred && e.holder == nil && e.seq == n {
					b := q.lock(e, &link{q: q})
					// The client takes the token of a deferred message from its delivery annotations.
					b = append(enc(nil, Desc{Code: 0x71, V: Map{{Sym("x-opt-lock-token"), swap(e.token)}}}), b...)
					out = append(out, Map{{"message", b}, {"lock-token", swap(e.token)}})
				}
			}
		}
		return messagesReply(out)
	}
	return 501, "unsupported operation " + op, nil, true
}

func messagesReply(out []any) (int32, string, any, bool) {
	if len(out) == 0 {
		return 204, "No Content", nil, true
	}
	return 200, "OK", Map{{"messages", out}}, true
}

// manageSettle settles messages by their lock tokens, as clients do that have lost
// the link on which these came.
func (q *queue) manageSettle(in Map, tokens []any) (code int32, text string, value any, answer bool) {
	st := Desc{Code: 0x27, V: []any{}}
	switch in.Get("disposition-status") {
	case "completed":
		st.Code = 0x24
	case "suspended":
		st = Desc{Code: 0x25, V: []any{Desc{Code: 0x1d, V: []any{nil, nil, Map{{"DeadLetterReason", in.Get("deadletter-reason")},
			{"DeadLetterErrorDescription", in.Get("deadletter-description")}}}}}}
	case "defered": // as the protocol spells it
		st.V = []any{false, true}
	}
	for _, t := range tokens {
		e := q.byToken(t)
		if e == nil {
			return 410, goneMessage, nil, true
		}
		if _, answer := q.settle(e, e.holder, e.token, st); !answer {
			return 0, "", nil, false
		}
	}
	return 200, "OK", nil, true
}

// manageScheduled schedules messages, or cancels scheduled ones. A topic gives those
// of its subscriptions the sequence numbers of the first one.
func (s *Server) manageScheduled(addr, op string, list func(string) []any) (int32, string, any) {
	to := s.topics[addr]
	if s.queues[addr] != nil {
		to = []string{addr}
	}
	if to == nil {
		return 404, "entity not found", nil
	}
	var seqs []int64
	for i, name := range to {
		q := s.queues[name]
		if op == "com.microsoft:cancel-scheduled-message" {
			for _, n := range list("sequence-numbers") {
				if i := slices.IndexFunc(q.list, func(e *entry) bool { return e.state == scheduled && e.seq == n }); i >= 0 {
					q.remove(q.list[i])
				}
			}
			continue
		}
		for _, x := range list("messages") {
			m := parseMessage(x.(Map).Get("message").([]byte))
			if fail := q.check(m, []*message{m}); fail.Code != 0 {
				return 400, "The SessionId was not set on a message.", nil
			}
			seq := q.seq + 1
			if !q.duplicate(m, m) {
				seq = q.add(m).seq
			}
			if i == 0 {
				seqs = append(seqs, seq)
			}
		}
		q.pump()
	}
	if seqs == nil {
		return 200, "OK", nil
	}
	return 200, "OK", Map{{"sequence-numbers", seqs}}
}
