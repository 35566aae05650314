package cas_test

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// truth is the time of an engine, which its stores know only within an interval.
type truth struct{ at cas.Instant }

func (t *truth) pass(d time.Duration) { t.at += cas.Instant(d / time.Microsecond) }

// view is what one store knows of it: the interval begins and ends that much before
// and after.
type view struct {
	*truth
	before, after time.Duration
}

func (v view) Now(context.Context) (cas.Now, error) {
	return cas.Between(v.at-cas.Instant(v.before/time.Microsecond), v.at+cas.Instant(v.after/time.Microsecond)), nil
}

// viewer is a store with its clock.
type viewer struct {
	*press
	clock view
}

func (v view) open(at *table) viewer {
	p := openPress(at)
	t := &cas.Transactions[*batch]{Store: cas.New(at, v, once.Options{}.Ready()), Engine: at}
	p.desk.Transactions, p.Publishing.Transactions = t, t
	return viewer{p, v}
}

// What one store writes and another reads is safe, wherever the engine's time is in
// the interval of each.
func TestEveryComparisonUsesTheSafeEndOfTheTime(t *testing.T) {
	const width, span = 2 * time.Second, 10 * time.Second
	for name, c := range map[string]func(t *testing.T, clock *truth, writer, reader viewer){
		"a lease is not over before its end": func(t *testing.T, clock *truth, writer, reader viewer) {
			take(t, writer, 1, span)
			clock.pass(span - time.Microsecond)
			if rec := get(t, reader); rec.Status != once.Running || rec.LeaseLeft < time.Microsecond {
				t.Errorf("the record is %v for %v", rec.Status, rec.LeaseLeft)
			}
			next := once.Fence{Key: pay.For("1").Key(), Owner: [16]byte{2}, Attempt: 1}
			if rec, err := reader.desk.Claim(t.Context(), once.ClaimRequest{Fence: next, Lease: span}); err != nil || rec.HeldBy(next.Owner) {
				t.Errorf("Claim took it over: %v, %v", rec, err)
			}
		},
		"a lease that is extended is not over before its end": func(t *testing.T, clock *truth, writer, reader viewer) {
			fence := take(t, writer, 1, span)
			clock.pass(span / 2)
			must(t, writer.desk.Extend(t.Context(), fence, span))
			clock.pass(span - time.Microsecond)
			if rec := get(t, reader); rec.Status != once.Running {
				t.Errorf("the record is %v", rec.Status)
			}
		},
		"the settle time after a lease that lapsed": func(t *testing.T, clock *truth, writer, reader viewer) {
			take(t, writer, 1, span)
			clock.pass(span + 5*time.Second)
			if rec := get(t, reader); rec.Status == once.Unknown && -rec.LeaseLeft > 5*time.Second {
				t.Errorf("it is said to have ended %v ago", -rec.LeaseLeft)
			}
		},
		"the settle time after an unknown end": func(t *testing.T, clock *truth, writer, reader viewer) {
			fence := take(t, writer, 1, time.Hour)
			must(t, writer.desk.Settle(t.Context(), once.Settlement{Fence: fence, Status: once.Unknown}))
			clock.pass(5 * time.Second)
			if rec := get(t, reader); rec.Status != once.Unknown || -rec.LeaseLeft > 5*time.Second || rec.LeaseLeft >= 0 {
				t.Errorf("the record is %v, said to have ended %v ago", rec.Status, -rec.LeaseLeft)
			}
		},
		"the age of a key that its provider forgets": func(t *testing.T, clock *truth, writer, reader viewer) {
			take(t, writer, 1, time.Hour)
			clock.pass(span)
			if rec := get(t, reader); rec.Age < span {
				t.Errorf("it is said to be %v old", rec.Age)
			}
		},
		"nothing is forgotten inside its time": func(t *testing.T, clock *truth, writer, reader viewer) {
			fence := take(t, writer, 1, time.Hour)
			set := once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: span, KeepKey: 2 * span}
			must(t, writer.desk.Settle(t.Context(), set))
			if left := get(t, reader).OutcomeLeft - time.Microsecond; left >= span {
				clock.pass(left)
			} else {
				clock.pass(span - time.Microsecond)
			}
			if rec := get(t, reader); rec.Status != once.Done {
				t.Errorf("the record is %v before its outcome expires", rec.Status)
			}
			clock.pass(span)
			if rec := get(t, reader); rec.Status != once.Expired {
				t.Errorf("the record is %v before its key is forgotten", rec.Status)
			}
		},
		"what is unchanged for some time": func(t *testing.T, clock *truth, writer, reader viewer) {
			take(t, writer, 1, time.Hour)
			clock.pass(span - time.Microsecond)
			now, _ := reader.clock.Now(t.Context())
			if cas.Selects(once.RecordQuery{Unchanged: span}, get(t, reader), now) {
				t.Error("it is said to be unchanged for longer")
			}
		},
		"a message on the shelf is not due early": func(t *testing.T, clock *truth, writer, reader viewer) {
			m := store.Shelved{Consumer: "c", State: store.Waiting, Message: broker.Message{ID: "now", Topic: "t"}}
			later := m
			later.Message.ID, later.Due = "later", span
			must(t, writer.Shelve(t.Context(), []store.Shelved{m, later}))
			clock.pass(span - time.Microsecond)
			ready, err := reader.Shelved(t.Context(), store.ShelfQuery{Consumer: "c", Ready: true})
			if err != nil || len(ready) != 1 || ready[0].Message.ID != "now" || ready[0].Due > 0 {
				t.Errorf("these are ready: %+v, %v", ready, err)
			}
			all, err := reader.Shelved(t.Context(), store.ShelfQuery{Consumer: "c"})
			if err != nil || len(all) != 2 || all[1].Due <= 0 || all[1].Due > span {
				t.Errorf("these are on the shelf: %+v, %v", all, err)
			}
			clock.pass(2*width + time.Second)
			if ready, err = reader.Shelved(t.Context(), store.ShelfQuery{Consumer: "c", Ready: true}); err != nil || len(ready) != 2 {
				t.Errorf("these are ready: %+v, %v", ready, err)
			}
		},
		"a message that is tried again later is not due early": func(t *testing.T, clock *truth, writer, reader viewer) {
			m := store.Shelved{Consumer: "c", State: store.Waiting, Message: broker.Message{ID: "1", Topic: "t"}}
			must(t, reader.Shelve(t.Context(), []store.Shelved{m}))
			m.Seq, m.Version, m.Due = 1, 1, time.Millisecond
			must(t, writer.Change(t.Context(), m))
			ready, err := reader.Shelved(t.Context(), store.ShelfQuery{Consumer: "c", Ready: true})
			if err != nil || len(ready) != 0 {
				t.Errorf("these are ready: %+v, %v", ready, err)
			}
		},
		"a delayed message is not woken early": func(t *testing.T, clock *truth, writer, reader viewer) {
			m := outgoing("1", "")
			m.Delay = span
			put(t, writer.Publishing, writer.Queue.(*table), m)
			clock.pass(span - time.Microsecond)
			woken, next, err := reader.WakeDelayed(t.Context(), [16]byte{}, store.Pending, 9)
			if err != nil || woken != 0 || next <= 0 {
				t.Errorf("WakeDelayed returned %d, %v, %v", woken, next, err)
			}
		},
		"a lane has one relay": func(t *testing.T, clock *truth, writer, reader viewer) {
			as, err := writer.LeaseLanes(t.Context(), [16]byte{1}, span, []int{0})
			if err != nil || as.Lanes[0].Left > span {
				t.Errorf("LeaseLanes returned %v, %v", as.Lanes[0], err)
			}
			clock.pass(span - time.Microsecond)
			as, err = reader.LeaseLanes(t.Context(), [16]byte{2}, span, []int{0})
			if err != nil || as.Lanes[0].Relay != [16]byte{1} || as.Relays != 2 {
				t.Errorf("the lane was taken: %v with %d relays, %v", as.Lanes[0], as.Relays, err)
			}
		},
		"a consumer was not down for longer": func(t *testing.T, clock *truth, writer, reader viewer) {
			_, err := writer.Register(t.Context(), store.Consumer{Name: "c", Source: "s"})
			must(t, err)
			clock.pass(span)
			if all, err := reader.Consumers(t.Context()); err != nil || len(all) != 1 || all[0].Seen > span {
				t.Errorf("Consumers returned %+v, %v", all, err)
			}
		},
	} {
		for _, writes := range []view{{before: width}, {after: width}} {
			for _, reads := range []view{{before: width}, {after: width}} {
				t.Run(name, func(t *testing.T) {
					clock := &truth{1 << 50}
					writes.truth, reads.truth = clock, clock
					at := newTable()
					c(t, clock, writes.open(at), reads.open(at))
				})
			}
		}
	}
}

func take(t *testing.T, p viewer, owner byte, lease time.Duration) once.Fence {
	t.Helper()
	fence := once.Fence{Key: pay.For("1").Key(), Owner: [16]byte{owner}}
	rec, err := p.desk.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: lease})
	if err != nil || !rec.HeldBy(fence.Owner) {
		t.Fatalf("Claim returned %v, %v", rec, err)
	}
	fence.Attempt = rec.Attempt
	return fence
}

func get(t *testing.T, p viewer) once.Record {
	t.Helper()
	rec, err := p.desk.Get(t.Context(), pay.For("1").Key())
	must(t, err)
	return rec
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
