package storetest_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

// outboxBugs are seeded bugs in the outbox, each with the cases that must catch
// it.
var outboxBugs = map[string]string{
	"bodies made texts":           "outbox/exact outbox/bodiless outbox/sealed",
	"headers trimmed":             "outbox/exact",
	"cause dropped":               "outbox/exact outbox/cause",
	"any cause is found":          "outbox/cause",
	"times made up":               "outbox/exact",
	"attempt kept":                "outbox/exact",
	"state as given":              "outbox/exact",
	"bodies cut at 1 MiB":         "outbox/large",
	"put in a commit of its own":  "outbox/commits outbox/in-flight",
	"keeps the caller's slices":   "outbox/slices",
	"put backwards":               "outbox/order",
	"each ID once":                "outbox/order",
	"lanes of its own":            "outbox/lanes outbox/exact",
	"drops what cannot be sent":   "outbox/invalid",
	"the first 500 of a batch":    "outbox/batches",
	"what is leased is taken":     "outbox/leased outbox/fenced",
	"extends what was not named":  "outbox/leased outbox/lapsed",
	"releases everything":         "outbox/released",
	"releases what others have":   "outbox/released",
	"lapsed is nobody's at once":  "outbox/lapsed",
	"lapsed is never taken":       "outbox/lapsed",
	"lost lanes come back":        "outbox/lapsed outbox/fenced",
	"released and still alive":    "outbox/relays",
	"alive by its lanes":          "outbox/relays",
	"alive for ever":              "outbox/relays",
	"looks, then leases":          "outbox/lease-race",
	"no fence":                    "outbox/fenced outbox/fenced-partly",
	"what is nobody's is anyones": "outbox/fenced",
	"all lanes or nothing":        "outbox/fenced-partly",
	"lapsed is lost":              "outbox/late",
	"people need a lease":         "outbox/people outbox/sent",
	"as many as were given":       "outbox/fenced-partly outbox/known outbox/sent",
	"known in any state":          "outbox/known outbox/sent",

	"kept is deleted":              "outbox/sent outbox/forget",
	"deleted is kept":              "outbox/sent",
	"archived in place":            "outbox/sent",
	"only what is pending is sent": "outbox/sent",
	"reason dropped":               "outbox/moves",
	"reason cut at 500":            "outbox/moves",
	"attempts dropped":             "outbox/moves outbox/moves-each",
	"stuck for ever":               "outbox/moves",
	"reason of the first":          "outbox/moves-each",
	"a park is not seen":           "outbox/decided",
	"a replay is not seen":         "outbox/decided",
	"removes what is pending":      "outbox/removes",
	"looks, then sends":            "outbox/sent-race",
	"forgets early":                "outbox/forget outbox/forget-since",
	"forgets by when it was put":   "outbox/forget-since",
	"forgets without a limit":      "outbox/forget",
	"forgets what is stuck":        "outbox/forget",
	"forgets whatever the limit":   "outbox/forget",

	"due at once":               "outbox/delay outbox/exact",
	"delay as it was put":       "outbox/delay",
	"wakes early":               "outbox/wakes outbox/next",
	"wakes by itself":           "outbox/delay",
	"woken is new":              "outbox/wakes",
	"woken is pending":          "outbox/wakes",
	"wakes without a lease":     "outbox/wakes-own outbox/fenced",
	"next of all lanes":         "outbox/wakes-own",
	"wakes without a limit":     "outbox/wakes-most",
	"next is in an hour":        "outbox/next outbox/wakes-most outbox/wakes",
	"next is far":               "outbox/next",
	"moved to be due at once":   "outbox/moved-to-delayed outbox/moves",
	"topics without case":       "outbox/selects",
	"keys without spaces":       "outbox/selects",
	"IDs by prefix":             "outbox/selects",
	"one lane after another":    "outbox/seq-order",
	"lanes are fewer":           "outbox/lanes outbox/seq-order",
	"pages overlap":             "outbox/pages",
	"lanes by commit":           "outbox/commit-order",
	"pages without a limit":     "outbox/pages",
	"bytes and one too many":    "outbox/most-bytes",
	"large ones are skipped":    "outbox/most-bytes",
	"a large one stops all":     "outbox/most-bytes",
	"bodies in spite of it":     "outbox/bodiless",
	"reasons left out, too":     "outbox/bodiless",
	"heads of the page":         "outbox/heads",
	"no key is a key":           "outbox/heads",
	"heads of all states":       "outbox/heads",
	"pages of 1,000":            "outbox/largest-page",
	"published is counted":      "outbox/depth",
	"zeros are counted":         "outbox/depth",
	"a count is never more":     "outbox/depth-estimated",
	"an estimate of nothing":    "outbox/depth-estimated",
	"always an estimate":        "outbox/depth outbox/depth-estimated",
	"oldest since its change":   "outbox/oldest",
	"oldest of all":             "outbox/oldest",
	"a cursor":                  "outbox/commit-order",
	"stalled by a transaction":  "outbox/commit-order",
	"context ignored":           "outbox/context",
	"Sent loses a row":          "outbox/race",
	"rings never":               "outbox/rings outbox/waits",
	"rings once":                "outbox/rings",
	"hears what comes later":    "outbox/waits outbox/rings",
	"a ring lost with its Wait": "outbox/waits",
	"present alone":             "outbox/present outbox/present-race",
	"present for ever":          "outbox/present",
	"relays share an ID":        "outbox/present-race",
	"strangers are missing":     "outbox/stranger",
	"looks after its context":   "outbox/present",
}

// sender is a store with an outbox and one bug, or none.
type sender struct {
	*memstore.Store
	bug     string
	options *once.Options
	*posts
}

// posts is what the processes of a sender share, besides the store.
type posts struct {
	*notes
	open    map[*memstore.Tx][]store.Outgoing // messages of transactions in flight
	highest int64                             // the Seq that was read
	leased  map[leased]bool
	present map[[16]byte]bool // relays
	sends   int
	acting  sync.Mutex
}

func (s *sender) has(bug string) bool { return s.bug == bug }

func (s *sender) Options() *once.Options { return s.options }

// sending returns the harness of a sender.
func sending(bug string) storetest.TxHarness[*memstore.Tx] {
	s, p := memstore.New(nil), &posts{notes: newNotes(), open: make(map[*memstore.Tx][]store.Outgoing),
		leased: make(map[leased]bool)}
	open := func() *sender { return &sender{Store: s, bug: bug, options: once.Options{}.Ready(), posts: p} }
	h := inMemory(s, p.notes, func() once.TxStore[*memstore.Tx] { return open() })
	admin := open()
	h.Commit = func(_ context.Context, tx *memstore.Tx) error {
		if ms := admin.forgotten(tx); admin.has("keeps the caller's slices") {
			_ = s.PutTx(background, tx, ms)
		}
		return tx.Commit()
	}
	h.Rollback = func(_ context.Context, tx *memstore.Tx) error { admin.forgotten(tx); tx.Rollback(); return nil }
	return h
}

// forgotten returns and drops the messages of a transaction that is no longer
// in flight.
func (s *sender) forgotten(tx *memstore.Tx) []store.Outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	ms := s.open[tx]
	delete(s.open, tx)
	return ms
}

func (s *sender) PutTx(ctx context.Context, tx *memstore.Tx, ms []store.Outgoing) error {
	s.mu.Lock()
	before := s.open[tx]
	s.open[tx] = append(slices.Clip(before), ms...)
	if s.has("keeps the caller's slices") {
		s.open[tx] = ms
	}
	s.mu.Unlock()
	var put []store.Outgoing
	for _, m := range ms {
		same := func(other store.Outgoing) bool { return other.Message.ID == m.Message.ID }
		switch {
		case s.has("each ID once") && (slices.ContainsFunc(before, same) || slices.ContainsFunc(put, same)):
		case s.has("drops what cannot be sent") && m.Message.Check() != nil:
		default:
			put = append(put, s.spoilPut(m))
		}
	}
	switch s.bug {
	case "keeps the caller's slices":
		return nil
	case "put backwards":
		slices.Reverse(put)
	case "the first 500 of a batch":
		put = put[:min(len(put), 500)]
	case "context ignored":
		ctx = context.WithoutCancel(ctx)
	case "put in a commit of its own":
		tx = s.Begin()
		defer func() { _ = tx.Commit() }()
	}
	return s.Store.PutTx(ctx, tx, put)
}

func (s *sender) spoilPut(m store.Outgoing) store.Outgoing {
	switch s.bug {
	case "bodies made texts":
		m.Message.Body = bytes.ToValidUTF8(m.Message.Body, []byte("?"))
	case "cause dropped":
		m.Cause = ""
	case "headers trimmed":
		m.Message.Header = maps.Clone(m.Message.Header)
		for name, value := range m.Message.Header {
			m.Message.Header[name] = strings.TrimSpace(value)
		}
	case "times made up":
		if m.Message.Time.IsZero() {
			m.Message.Time = time.Now()
		}
	case "bodies cut at 1 MiB":
		m.Message.Body = m.Message.Body[:min(len(m.Message.Body), 1<<20)]
	case "due at once":
		m.Delay = 0
	}
	return m
}

func (s *sender) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	if s.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	s.mu.Lock()
	highest, inFlight := s.highest, len(s.open)
	s.mu.Unlock()
	asked := q
	q = s.spoilQuery(q)
	if s.has("wakes by itself") && q.State == store.Pending {
		_, _, _ = s.Store.WakeDelayed(ctx, [16]byte{}, store.Pending, 1000)
	}
	ms, err := s.Store.Outgoing(ctx, q)
	switch s.bug {
	case "a cursor":
		ms = slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.Seq < highest })
	case "stalled by a transaction":
		if inFlight > 0 {
			ms = nil
		}
	}
	if s.has("lanes by commit") && len(q.Lanes) > 0 {
		slices.Reverse(ms) // as if each had committed before the one in front of it
	}
	ms = s.spoilPage(asked, ms)
	for i := range ms {
		s.spoilRead(&ms[i])
	}
	if err == nil && s.bug == "a cursor" && len(ms) > 0 {
		s.mu.Lock()
		s.highest = max(s.highest, ms[len(ms)-1].Seq)
		s.mu.Unlock()
	}
	return ms, err
}

func (s *sender) spoilQuery(q store.OutgoingQuery) store.OutgoingQuery {
	switch s.bug {
	case "topics without case", "keys without spaces", "IDs by prefix":
		q.Topic, q.OrderingKey, q.IDs, q.Limit = "", "", nil, 20_000
	case "any cause is found":
		q.Cause = ""
	case "one lane after another":
		q.Limit = 20_000
	case "lanes are fewer":
		q.Lanes = slices.DeleteFunc(slices.Clone(q.Lanes), func(lane int) bool { return lane == 13 })
	case "lanes of its own":
		q.Lanes = slices.Clone(q.Lanes)
		for i := range q.Lanes {
			q.Lanes[i] ^= 1
		}
	case "pages overlap":
		q.After--
	case "pages without a limit":
		q.Limit = 20_000
	case "pages of 1,000":
		q.Limit = min(q.Limit, 1000)
	case "bytes and one too many", "large ones are skipped", "a large one stops all":
		q.MaxBytes = 0
	case "bodies in spite of it":
		q.Bodiless = false
	case "heads of the page", "no key is a key", "heads of all states":
		q.Heads = false
	}
	return q
}

// spoilPage changes a page as the bug does.
func (s *sender) spoilPage(q store.OutgoingQuery, ms []store.Outgoing) []store.Outgoing {
	only := func(keep func(m store.Outgoing) bool) {
		ms = slices.DeleteFunc(ms, func(m store.Outgoing) bool { return !keep(m) })
	}
	switch bytes := 0; s.bug {
	case "topics without case", "keys without spaces", "IDs by prefix":
		only(func(m store.Outgoing) bool { return s.selects(q, m) })
		ms = ms[:min(len(ms), limitOf(q))]
	case "one lane after another":
		slices.SortStableFunc(ms, func(a, b store.Outgoing) int { return slices.Index(q.Lanes, a.Lane) - slices.Index(q.Lanes, b.Lane) })
		ms = ms[:min(len(ms), limitOf(q))]
	case "bytes and one too many":
		only(func(m store.Outgoing) bool {
			fits := q.MaxBytes == 0 || bytes <= q.MaxBytes
			bytes += len(m.Message.Body)
			return fits
		})
	case "large ones are skipped", "a large one stops all":
		n := 0
		only(func(m store.Outgoing) bool {
			n++
			if fits := q.MaxBytes == 0 || bytes+len(m.Message.Body) <= q.MaxBytes; !fits {
				first := n == 1 && s.has("large ones are skipped")
				if !s.has("large ones are skipped") {
					bytes = q.MaxBytes + 1
				}
				return first
			}
			bytes += len(m.Message.Body)
			return true
		})
	case "heads of the page", "no key is a key":
		seen := make(map[string]bool)
		only(func(m store.Outgoing) bool {
			key := m.Message.OrderingKey
			head := !seen[key] || !q.Heads || key == "" && !s.has("no key is a key")
			seen[key] = true
			return head
		})
	case "heads of all states":
		only(func(m store.Outgoing) bool { return !q.Heads || m.Message.OrderingKey == "" || s.isFirst(m) })
	case "reasons left out, too":
		for i := range ms {
			if q.Bodiless {
				ms[i].Reason = ""
			}
		}
	}
	return ms
}

func limitOf(q store.OutgoingQuery) int {
	if q.Limit <= 0 {
		return 100
	}
	return q.Limit
}

// isFirst reports whether a message is the first of its ordering key, in any
// state.
func (s *sender) isFirst(m store.Outgoing) bool {
	for state := store.Pending; state <= store.Published; state++ {
		q := store.OutgoingQuery{State: state, OrderingKey: m.Message.OrderingKey, Limit: 1}
		ms, _ := s.Store.Outgoing(background, q)
		if len(ms) > 0 && ms[0].Seq < m.Seq {
			return false
		}
	}
	return true
}

func (s *sender) selects(q store.OutgoingQuery, m store.Outgoing) bool {
	topic := q.Topic == "" || q.Topic == m.Message.Topic
	key := q.OrderingKey == "" || q.OrderingKey == m.Message.OrderingKey
	id := len(q.IDs) == 0 || slices.Contains(q.IDs, m.Message.ID)
	switch s.bug {
	case "topics without case":
		topic = q.Topic == "" || strings.EqualFold(q.Topic, m.Message.Topic)
	case "keys without spaces":
		key = q.OrderingKey == "" || strings.TrimSpace(q.OrderingKey) == strings.TrimSpace(m.Message.OrderingKey)
	case "IDs by prefix":
		starts := func(id string) bool { return strings.HasPrefix(m.Message.ID, id) }
		id = len(q.IDs) == 0 || slices.ContainsFunc(q.IDs, starts)
	}
	return topic && key && id
}

func (s *sender) spoilRead(m *store.Outgoing) {
	switch s.bug {
	case "attempt kept":
		m.Message.Attempt = 9
	case "state as given":
		m.State = store.Stuck
	case "lanes of its own":
		m.Lane ^= 1
	case "delay as it was put":
		if m.State == store.Delayed {
			m.Delay = time.Hour
		}
	case "reason cut at 500":
		m.Reason = m.Reason[:min(len(m.Reason), 500)]
	}
}

func (s *sender) OutboxDepth(ctx context.Context, count int) ([]store.Depth, error) {
	if s.has("context ignored") {
		ctx = context.WithoutCancel(ctx)
	}
	depths, err := s.Store.OutboxDepth(ctx, count)
	if s.has("zeros are counted") {
		depths = append(depths, store.Depth{State: store.Held})
	}
	kept, _ := s.Store.Outgoing(ctx, store.OutgoingQuery{State: store.Published})
	if s.has("published is counted") && len(kept) > 0 {
		depths = append(depths, store.Depth{State: store.Published, Count: len(kept)})
	}
	oldest := time.Duration(0)
	for _, d := range depths {
		oldest = max(oldest, d.Oldest)
	}
	for i := range depths {
		d := &depths[i]
		switch s.bug {
		case "a count is never more":
			d.Count = min(d.Count, count)
		case "an estimate of nothing":
			if d.Count >= count {
				d.Count, d.Estimated = 0, true
			}
		case "always an estimate":
			d.Estimated = true
		case "oldest of all":
			d.Oldest = oldest
		case "oldest since its change":
			d.Oldest = s.sinceChange(ctx, d.State)
		}
	}
	return depths, err
}

func (s *sender) sinceChange(ctx context.Context, state store.OutgoingState) (oldest time.Duration) {
	ms, _ := s.Store.Outgoing(ctx, store.OutgoingQuery{State: state})
	for _, m := range ms {
		at := m.Created
		if !m.Changed.IsZero() {
			at = m.Changed
		}
		oldest = max(oldest, time.Since(at))
	}
	return oldest
}

// outboxCases returns the cases of outboxes on a new store without a bug. The
// others are those of its inner store.
func outboxCases(t *testing.T) []storetest.Case {
	return slices.DeleteFunc(storetest.TxCases(t, sending("")), func(c storetest.Case) bool { return !strings.HasPrefix(c.Name, "outbox/") })
}

func TestNoBugInOutboxes(t *testing.T) {
	pass(t, func() []storetest.Case { return outboxCases(t) })
}

func TestBugsInOutboxesAreCaught(t *testing.T) { catch(t, outboxBugs, sending) }

func TestBugsInHandOverAreCaught(t *testing.T) { catch(t, handOverBugs, sending) }

// TestEveryCaseOfOutboxesCatchesABug checks that no outbox case is redundant.
func TestEveryCaseOfOutboxesCatchesABug(t *testing.T) {
	seeded := slices.AppendSeq(slices.Collect(maps.Values(outboxBugs)), maps.Values(handOverBugs))
	named := strings.Fields(strings.Join(seeded, " "))
	for _, c := range outboxCases(t) {
		if !slices.Contains(named, c.Name) {
			t.Errorf("no seeded bug is caught by %s", c.Name)
		}
	}
}
