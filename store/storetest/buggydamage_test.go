package storetest_test

import (
	"context"
	"fmt"
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

// damageBugs are seeded bugs in stores whose rows are damaged, each with the cases
// that must catch it.
var damageBugs = map[string]string{
	"a damaged record is free":              "damage/record",
	"a damaged record ends its page":        "damage/list",
	"damaged records are shown nowhere":     "damage/list",
	"a damaged record ends its archive":     "damage/archive",
	"a damaged message ends its page":       "damage/outbox damage/shelf",
	"damaged messages are shown nowhere":    "damage/outbox damage/shelf",
	"a damaged message cannot be moved":     "damage/outbox-moves",
	"a damaged message cannot be archived":  "damage/outbox-ends",
	"a damaged message cannot be changed":   "damage/shelf-change",
	"a damaged message wakes, and no other": "damage/outbox-delayed",
	"damaged leases stop all relays":        "damage/leases",
	"damaged leases are free":               "damage/leases",
	"a damaged shelf takes no message":      "damage/shelf-index",
	"a damaged shelf is not listed":         "damage/shelf-index",
	"a damaged shelf is shown nowhere":      "damage/shelf-index",
	"a damaged consumer ends the list":      "damage/consumers",
	"damaged consumers are shown nowhere":   "damage/consumers",
	"a damaged consumer is a new one":       "damage/consumers",
	"a damaged consumer keeps others out":   "damage/consumers",
	"a damaged registry is empty":           "damage/registry",
	"a damaged registry ends the list":      "damage/registry",
	"a damaged position ends the list":      "damage/positions",
	"damaged positions are shown nowhere":   "damage/positions",
	"a damaged position begins anew":        "damage/positions",
	"a damaged position is moved":           "damage/positions",
	"a damaged position cannot be set":      "damage/positions",
	"without a list, no position opens":     "damage/partitions",
	"without a list, no position is listed": "damage/partitions",
}

// spoiled is a store of which rows can be damaged.
type spoiled struct {
	*memstore.Store
	bug string
	*marked
}

// marked are the rows that are damaged, by name.
type marked struct {
	mu   sync.Mutex
	rows map[string]bool
}

func (m *marked) mark(kind string, names ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows[fmt.Sprint(kind, names)] = true
	return nil
}

// unmark returns a function that makes the row whole.
func (m *marked) unmark(kind string, names ...string) func(context.Context) error {
	return func(context.Context) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.rows, fmt.Sprint(kind, names))
		return nil
	}
}

func (m *marked) has(kind string, names ...string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows[fmt.Sprint(kind, names)]
}

func (m *marked) record(k once.Key) error {
	if m.has("record", k.String()) {
		return fmt.Errorf("%w: %v", once.ErrCorrupt, k)
	}
	return nil
}

func spoiling(bug string) storetest.TxHarness[*memstore.Tx] {
	h := sending("") // for the functions of its transactions
	of := &marked{rows: make(map[string]bool)}
	db := memstore.New(nil)
	return storetest.TxHarness[*memstore.Tx]{
		Open:  func(testing.TB) once.TxStore[*memstore.Tx] { return spoiled{db, bug, of} },
		Begin: func(context.Context) (*memstore.Tx, error) { return db.Begin(), nil }, Commit: h.Commit, Rollback: h.Rollback,
		Effect: h.Effect, Count: h.Count, Patience: time.Second,
		Damages: []storetest.Damage{
			{Name: "record", Record: func(_ context.Context, k once.Key) error { return of.mark("record", k.String()) }},
			{Name: "outgoing", Outgoing: func(_ context.Context, id string) error { return of.mark("outgoing", id) }},
			{Name: "shelved", Shelved: func(_ context.Context, c, id string) error { return of.mark("shelved", c, id) }},
			{Name: "leases", Leases: func(context.Context) error { return of.mark("leases") }},
			{Name: "shelf", Shelf: func(context.Context) error { return of.mark("shelf") }},
			{Name: "consumer", Consumer: func(_ context.Context, name string) (func(context.Context) error, error) {
				return of.unmark("consumer", name), of.mark("consumer", name)
			}},
			{Name: "registry", Registry: func(context.Context) (func(context.Context) error, error) {
				return of.unmark("registry"), of.mark("registry")
			}},
			{Name: "position", Position: func(_ context.Context, c, p string) error { return of.mark("position", c, p) }},
			{Name: "partitions", Partitions: func(_ context.Context, c string) (func(context.Context) error, error) {
				return of.unmark("partitions", c), of.mark("partitions", c)
			}},
		},
	}
}

func (s spoiled) Get(ctx context.Context, k once.Key) (once.Record, error) {
	if err := s.record(k); err != nil && s.bug != "a damaged record is free" {
		return once.Record{}, err
	}
	return s.Store.Get(ctx, k)
}

func (s spoiled) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if err := s.record(r.Key); err != nil && s.bug != "a damaged record is free" {
		return once.Record{}, err
	}
	return s.Store.Claim(ctx, r)
}

func (s spoiled) GetMany(ctx context.Context, keys []once.Key) (recs []once.Record, err error) {
	for _, k := range keys {
		rec, err := s.Get(ctx, k)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

func (s spoiled) List(ctx context.Context, q once.RecordQuery) (once.RecordPage, error) {
	page, err := s.Store.List(ctx, q)
	for _, rec := range page.Records {
		if err := s.record(rec.Key); err != nil {
			page.Damaged = append(page.Damaged, err)
		}
	}
	page.Records = slices.DeleteFunc(page.Records, func(rec once.Record) bool { return s.record(rec.Key) != nil })
	switch {
	case s.bug == "a damaged record ends its page" && page.Damaged != nil:
		return once.RecordPage{}, page.Damaged[0]
	case s.bug == "damaged records are shown nowhere":
		page.Damaged = nil
	}
	return page, err
}

func (s spoiled) Forgettable(ctx context.Context, limit int) (due []once.Record, more bool, err error) {
	due, more, err = s.Store.Forgettable(ctx, limit)
	due = slices.DeleteFunc(due, func(rec once.Record) bool {
		damage := s.record(rec.Key)
		if damage != nil {
			err = damage
		}
		return damage != nil
	})
	if err != nil && s.bug == "a damaged record ends its archive" {
		return nil, false, err
	}
	return due, more, err
}

func (s spoiled) Outgoing(ctx context.Context, q store.OutgoingQuery) ([]store.Outgoing, error) {
	ms, err := s.Store.Outgoing(ctx, q)
	for i := range ms {
		if s.has("outgoing", ms[i].Message.ID) {
			ms[i].Unopened = once.ErrCorrupt
			if s.bug == "a damaged message ends its page" {
				return nil, once.ErrCorrupt
			}
		}
	}
	if s.bug == "damaged messages are shown nowhere" {
		ms = slices.DeleteFunc(ms, func(m store.Outgoing) bool { return m.Unopened != nil })
	}
	return ms, err
}

func (s spoiled) MoveOutgoing(ctx context.Context, relay [16]byte, ms []store.Outgoing, to store.OutgoingState) (int, error) {
	if s.bug == "a damaged message cannot be moved" && slices.ContainsFunc(ms, func(m store.Outgoing) bool { return m.Unopened != nil }) {
		return 0, once.ErrCorrupt
	}
	return s.Store.MoveOutgoing(ctx, relay, ms, to)
}

func (s spoiled) Sent(ctx context.Context, relay [16]byte, ms []store.Outgoing, then store.Ending) (int, error) {
	if s.bug == "a damaged message cannot be archived" && slices.ContainsFunc(ms, func(m store.Outgoing) bool { return m.Unopened != nil }) {
		return 0, once.ErrCorrupt
	}
	return s.Store.Sent(ctx, relay, ms, then)
}

func (s spoiled) WakeDelayed(ctx context.Context, relay [16]byte, to store.OutgoingState, limit int) (int, time.Duration, error) {
	if s.bug == "a damaged message wakes, and no other" {
		return 0, 0, nil
	}
	return s.Store.WakeDelayed(ctx, relay, to, limit)
}

// LeaseLanes begins anew a minute after leases were damaged.
func (s spoiled) LeaseLanes(ctx context.Context, relay [16]byte, ttl time.Duration, lanes []int) (store.Leases, error) {
	switch {
	case !s.has("leases"):
	case s.bug == "damaged leases stop all relays":
		return store.Leases{}, once.ErrCorrupt
	case s.bug == "damaged leases are free":
		var as store.Leases
		for _, lane := range lanes {
			as.Lanes[lane] = store.LaneLease{Relay: relay, Left: ttl}
		}
		return as, nil
	default:
		var as store.Leases
		for i := range as.Lanes {
			as.Lanes[i] = store.LaneLease{Relay: [16]byte{9}, Left: time.Minute}
		}
		return as, nil
	}
	return s.Store.LeaseLanes(ctx, relay, ttl, lanes)
}

func (s spoiled) Shelve(ctx context.Context, ms []store.Shelved) error {
	if s.bug == "a damaged shelf takes no message" && s.has("shelf") {
		return once.ErrCorrupt
	}
	return s.Store.Shelve(ctx, ms)
}

func (s spoiled) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	ms, err := s.Store.Shelved(ctx, q)
	if s.has("shelf") && q.Consumer == "" {
		switch s.bug {
		case "a damaged shelf is not listed":
			return nil, once.ErrCorrupt
		case "a damaged shelf is shown nowhere":
		default:
			ms = append(ms, store.Shelved{Unopened: once.ErrCorrupt})
		}
	}
	for i := range ms {
		if s.has("shelved", ms[i].Consumer, ms[i].Message.ID) {
			ms[i].Unopened = once.ErrCorrupt
			if s.bug == "a damaged message ends its page" {
				return nil, once.ErrCorrupt
			}
		}
	}
	if s.bug == "damaged messages are shown nowhere" {
		ms = slices.DeleteFunc(ms, func(m store.Shelved) bool { return m.Unopened != nil })
	}
	return ms, err
}

func (s spoiled) Change(ctx context.Context, m store.Shelved) error {
	if s.bug == "a damaged message cannot be changed" && m.Unopened != nil {
		return once.ErrCorrupt
	}
	return s.Store.Change(ctx, m)
}

func (s spoiled) Register(ctx context.Context, c store.Consumer) (store.Consumer, error) {
	all, _ := s.Store.Consumers(ctx)
	any := slices.ContainsFunc(all, func(c store.Consumer) bool { return s.has("consumer", c.Name) })
	switch {
	case s.has("registry"), s.bug == "a damaged consumer keeps others out" && any:
		return store.Consumer{}, once.ErrCorrupt
	case !s.has("consumer", c.Name):
	case s.bug == "a damaged consumer is a new one":
		return store.Consumer{}, nil
	default:
		return store.Consumer{}, once.ErrCorrupt
	}
	return s.Store.Register(ctx, c)
}

func (s spoiled) Consumers(ctx context.Context) (all []store.Consumer, err error) {
	switch {
	case s.has("registry") && s.bug == "a damaged registry is empty":
		return nil, nil
	case s.has("registry") && s.bug == "a damaged registry ends the list":
		return nil, once.ErrCorrupt
	case s.has("registry"):
		return []store.Consumer{{Damaged: once.ErrCorrupt}}, nil
	}
	all, err = s.Store.Consumers(ctx)
	for i := range all {
		if s.has("consumer", all[i].Name) {
			all[i] = store.Consumer{Name: all[i].Name, Damaged: once.ErrCorrupt}
			if s.bug == "a damaged consumer ends the list" {
				return nil, once.ErrCorrupt
			}
		}
	}
	if s.bug == "damaged consumers are shown nowhere" {
		all = slices.DeleteFunc(all, func(c store.Consumer) bool { return c.Damaged != nil })
	}
	return all, err
}

func (s spoiled) Positions(ctx context.Context, consumer string) (all []store.Position, err error) {
	if s.has("partitions", consumer) {
		if s.bug == "without a list, no position is listed" {
			return nil, nil
		}
		return []store.Position{{Consumer: consumer, Damaged: once.ErrCorrupt}}, nil
	}
	all, err = s.Store.Positions(ctx, consumer)
	for i := range all {
		if s.has("position", consumer, all[i].Partition) {
			all[i].Damaged = once.ErrCorrupt
			if s.bug == "a damaged position ends the list" {
				return nil, once.ErrCorrupt
			}
		}
	}
	if s.bug == "damaged positions are shown nowhere" {
		all = slices.DeleteFunc(all, func(p store.Position) bool { return p.Damaged != nil })
	}
	return all, err
}

func (s spoiled) OpenPosition(ctx context.Context, consumer, partition string) (store.Position, error) {
	switch {
	case s.bug == "without a list, no position opens" && s.has("partitions", consumer):
		return store.Position{}, once.ErrCorrupt
	case !s.has("position", consumer, partition):
	case s.bug == "a damaged position begins anew":
		return store.Position{Consumer: consumer, Partition: partition, Epoch: 1}, nil
	default:
		return store.Position{}, once.ErrCorrupt
	}
	return s.Store.OpenPosition(ctx, consumer, partition)
}

func (s spoiled) TransactAt(ctx context.Context, from, to store.Position, body func(*memstore.Tx) error) error {
	switch {
	case !s.has("position", from.Consumer, from.Partition):
	case s.bug == "a damaged position is moved":
		_ = s.Store.TransactAt(ctx, from, to, body)
		return once.ErrCorrupt
	default:
		return once.ErrCorrupt
	}
	return s.Store.TransactAt(ctx, from, to, body)
}

func (s spoiled) SetPosition(ctx context.Context, p store.Position) error {
	if s.has("position", p.Consumer, p.Partition) && s.bug != "a damaged position cannot be set" {
		_ = s.unmark("position", p.Consumer, p.Partition)(ctx)
	}
	return s.Store.SetPosition(ctx, p)
}

// damageCases returns the cases about damage.
func damageCases(t *testing.T) []storetest.Case {
	return slices.DeleteFunc(storetest.TxCases(t, spoiling("")), func(c storetest.Case) bool { return !strings.HasPrefix(c.Name, "damage/") })
}

func TestNoBugWithDamage(t *testing.T) {
	pass(t, func() []storetest.Case { return damageCases(t) })
}

func TestBugsWithDamageAreCaught(t *testing.T) { catch(t, damageBugs, spoiling) }

// TestEveryCaseOfDamageCatchesABug checks that no case about damage is redundant.
func TestEveryCaseOfDamageCatchesABug(t *testing.T) {
	named := strings.Fields(strings.Join(slices.Collect(maps.Values(damageBugs)), " "))
	for _, c := range damageCases(t) {
		if !slices.Contains(named, c.Name) {
			t.Errorf("no seeded bug is caught by %s", c.Name)
		}
	}
}
