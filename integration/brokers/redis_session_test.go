//go:build linux

package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/redis/go-redis/v9"
)

func TestRedisSlowHandlerKeepsItsMessage(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startRedis(t).place(t, redisbroker.Options{ClaimAfter: 300 * time.Millisecond})
	first, second := openSession(t, p.source, 1), openSession(t, p.source, 10)
	ms := p.messages(1)
	p.publish(t, ms...)
	holder, other := first, second
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	ds, err := first.Receive(ctx, 1)
	cancel()
	if err != nil {
		holder, other = second, first
		ds = receive(t, second, 1)
	}
	receiveNothing(t, other, 1500*time.Millisecond) // five times as long as it may go without renewal
	proof.Must(t, holder.Ack(proof.Soon(t), ds))
	receiveNothing(t, other, 1500*time.Millisecond)
}

func TestRedisClaimsWhatADeadSessionLeft(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{ClaimAfter: 300 * time.Millisecond})
	ms := p.messages(3)
	p.publish(t, ms...)
	r.leftByTheDead(t, p, len(ms))
	s := openSession(t, p.source, 10)
	ds := r.receiveInLooks(t, s, len(ms))
	for i, d := range ds {
		if d.Message.ID != ms[i].ID || !d.Redelivered || d.Message.Attempt != 2 {
			t.Errorf("delivery %d is %s, redelivered %v, attempt %d", i, d.Message.ID, d.Redelivered, d.Message.Attempt)
		}
	}
	proof.Must(t, s.Ack(proof.Soon(t), ds))
	proof.Await(t, "the dead session is removed from the group", func() bool {
		names, err := r.client.XInfoConsumers(proof.Soon(t), p.stream, "billing").Result()
		return err == nil && !slices.ContainsFunc(names, func(c redis.XInfoConsumer) bool { return c.Name == deadSession })
	})
}

// receiveInLooks receives n deliveries. It fails if they do not come although
// sessions have looked often for entries of dead sessions, for which they wait a
// third of ClaimAfter.
func (r *redisServer) receiveInLooks(tb testing.TB, s broker.Session, n int) (ds []broker.Delivery) {
	tb.Helper()
	const often = 20
	for first := r.looks(tb); len(ds) < n; {
		ctx, cancel := context.WithTimeout(proof.Soon(tb), 100*time.Millisecond)
		more, err := s.Receive(ctx, n-len(ds))
		cancel()
		switch ds = append(ds, more...); {
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			tb.Fatal(err)
		case err != nil && r.looks(tb) > first+often:
			tb.Fatalf("received %d of %d messages, after more than %d looks", len(ds), n, often)
		}
	}
	return ds
}

// looks returns how often scripts have asked for pending entries.
func (r *redisServer) looks(tb testing.TB) (n int) {
	tb.Helper()
	stats, err := r.client.Info(proof.Soon(tb), "commandstats").Result()
	proof.Must(tb, err)
	if _, rest, ok := strings.Cut(stats, "cmdstat_xpending:calls="); ok {
		_, err = fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &n)
		proof.Must(tb, err)
	}
	return n
}

const deadSession = "once/dead/1/x"

// leftByTheDead leaves n entries to a session of a process that has died.
func (r *redisServer) leftByTheDead(tb testing.TB, p *redisPlace, n int) {
	tb.Helper()
	read, err := r.client.XReadGroup(proof.Soon(tb), &redis.XReadGroupArgs{Group: "billing", Consumer: deadSession,
		Streams: []string{p.stream, ">"}, Count: int64(n)}).Result()
	proof.Must(tb, err)
	if len(read[0].Messages) != n {
		tb.Fatalf("the dead session has %d of %d entries", len(read[0].Messages), n)
	}
}

// A session whose consumer is removed must not take entries with it that
// another session has not claimed yet, because its window is full.
func TestRedisRemovesNoSessionWithEntries(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{ClaimAfter: 100 * time.Millisecond})
	ms := p.messages(6)
	p.publish(t, ms...)
	r.leftByTheDead(t, p, len(ms))
	var got []string
	s := openSession(t, p.source, 1)
	for range ms {
		ds := receive(t, s, 1)
		receiveNothing(t, s, 300*time.Millisecond) // while the others wait
		got = append(got, ds[0].Message.ID)
		proof.Must(t, s.Ack(proof.Soon(t), ds))
	}
	if slices.Sort(got); len(slices.Compact(got)) != len(ms) {
		t.Errorf("of %d messages have come: %q", len(ms), got)
	}
}

// A session that is closed leaves what it has not settled to the group.
func TestRedisClosedSessionLosesNothing(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{ClaimAfter: time.Hour})
	p.publish(t, p.messages(2)...)
	s := openSession(t, p.source, 10)
	receive(t, s, 2)
	proof.Must(t, s.Close(proof.Soon(t)))
	if is, err := r.client.XPending(proof.Soon(t), p.stream, "billing").Result(); err != nil || is.Count != 2 {
		t.Fatalf("after Close, pending is %+v, %v", is, err)
	}
	for _, d := range receive(t, openSession(t, p.source, 10), 2) {
		if !d.Redelivered {
			t.Errorf("%s comes as if it were new", d.Message.ID)
		}
	}
}

// A session that was stalled does not settle what another one has claimed.
func TestRedisStalledSessionSettlesNothing(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	for name, settle := range map[string]func(broker.Session, context.Context, []broker.Delivery) error{
		"ack":    func(s broker.Session, ctx context.Context, ds []broker.Delivery) error { return s.Ack(ctx, ds) },
		"return": func(s broker.Session, ctx context.Context, ds []broker.Delivery) error { return s.Return(ctx, ds, 0) },
		"reject": func(s broker.Session, ctx context.Context, ds []broker.Delivery) error {
			return s.Reject(ctx, ds, "no use")
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.place(t, redisbroker.Options{ClaimAfter: time.Hour})
			p.publish(t, p.messages(1)...)
			stalled := openSession(t, p.source, 1)
			ds := receive(t, stalled, 1)
			p.claim(t, "another")
			if err := settle(stalled, proof.Soon(t), ds); err == nil {
				t.Error("the delivery of another session was settled")
			}
			is, err := r.client.XPendingExt(proof.Soon(t), &redis.XPendingExtArgs{Stream: p.stream, Group: "billing", Start: "-", End: "+", Count: 9}).Result()
			if err != nil || len(is) != 1 || is[0].Consumer != "another" {
				t.Errorf("pending is %+v, %v", is, err)
			}
			if n := r.client.XLen(proof.Soon(t), p.dead).Val(); n != 0 {
				t.Errorf("there are %d dead letters", n)
			}
		})
	}
}

// A message whose ack fails after its dead letter was stored gets no second one.
func TestRedisStoresADeadLetterOnce(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{})
	p.publish(t, p.messages(1)...)
	s := openSession(t, p.source, 1)
	ds := receive(t, s, 1)
	proof.Must(t, r.client.Do(proof.Soon(t), "ACL", "SETUSER", "default", "-xack").Err())
	if err := s.Reject(proof.Soon(t), ds, "no use"); err == nil {
		t.Error("Reject without the right to XACK: no error")
	}
	proof.Must(t, r.client.Do(proof.Soon(t), "ACL", "SETUSER", "default", "+xack").Err())
	proof.Must(t, s.Reject(proof.Soon(t), ds, "no use"))
	if letters := p.letters(t); len(letters) != 1 {
		t.Errorf("there are %d dead letters", len(letters))
	}
}

// claim gives all pending entries to a consumer.
func (p *redisPlace) claim(tb testing.TB, consumer string) {
	tb.Helper()
	claimed, _, err := p.client.XAutoClaim(proof.Soon(tb), &redis.XAutoClaimArgs{Stream: p.stream, Group: "billing", Consumer: consumer,
		Start: "0", Count: 100}).Result()
	proof.Must(tb, err)
	if len(claimed) == 0 {
		tb.Fatal("nothing was claimed")
	}
}

// redisEnds waits until a session ends, and returns its error. It fails if the
// session has a delivery before that.
func redisEnds(tb testing.TB, s broker.Session) error {
	tb.Helper()
	ctx := proof.Soon(tb)
	ds, err := s.Receive(ctx, 10)
	if err == nil || ctx.Err() != nil {
		tb.Fatalf("the session goes on, with %d deliveries, %v", len(ds), err)
	}
	return err
}

func TestRedisSessionEndsLoudly(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	for name, c := range map[string]struct {
		do   func(*testing.T, *redisPlace)
		want string
	}{
		"the stream is deleted": {func(t *testing.T, p *redisPlace) { proof.Must(t, r.client.Del(proof.Soon(t), p.stream).Err()) }, "DeclareGroup"},
		"the group is deleted": {func(t *testing.T, p *redisPlace) {
			proof.Must(t, r.client.XGroupDestroy(proof.Soon(t), p.stream, "billing").Err())
		}, "DeclareGroup"},
		"the group is moved back": {func(t *testing.T, p *redisPlace) {
			proof.Must(t, r.client.XGroupSetID(proof.Soon(t), p.stream, "billing", "0").Err())
			p.publish(t, p.messages(1)...)
		}, "moved back"},
	} {
		for _, active := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", single active ", active), func(t *testing.T) {
				p := r.place(t, redisbroker.Options{SingleActive: active})
				s := openSession(t, p.source, 10)
				p.publish(t, p.messages(2)...)
				proof.Must(t, s.Ack(proof.Soon(t), receive(t, s, 2)))
				c.do(t, p)
				if err := redisEnds(t, s); !strings.Contains(err.Error(), c.want) {
					t.Errorf("the session ends with %v, want something about %s", err, c.want)
				}
			})
		}
	}
	t.Run("there is no group", func(t *testing.T) {
		p := r.place(t, redisbroker.Options{})
		for _, source := range []broker.Source{p.broker.Group(p.stream, "other"), p.broker.Group("no such stream", "billing")} {
			if _, err := source.Open(proof.Soon(t), 1); err == nil || !strings.Contains(err.Error(), "DeclareGroup") {
				t.Errorf("%s opens: %v", source.Name(), err)
			}
		}
	})
}

// A stream that was recreated starts at its first message.
func TestRedisStartsARecreatedStreamAtItsBeginning(t *testing.T) {
	t.Parallel() // most of it is waiting
	p := startRedis(t).place(t, redisbroker.Options{})
	s := openSession(t, p.source, 10)
	p.publish(t, p.messages(3)...)
	proof.Must(t, s.Ack(proof.Soon(t), receive(t, s, 3)))
	proof.Must(t, p.client.Del(proof.Soon(t), p.stream).Err())
	ms := p.messages(5)
	p.publish(t, ms[3:]...)
	redisEnds(t, s)
	proof.Must(t, p.broker.DeclareGroup(proof.Soon(t), p.stream, "billing"))
	if ds := receive(t, openSession(t, p.source, 10), 2); ds[0].Message.ID != ms[3].ID {
		t.Errorf("first comes %s", ds[0].Message.ID)
	}
}

func TestRedisReportsPendingEntriesThatWereDeleted(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{ClaimAfter: 300 * time.Millisecond})
	ms := p.messages(3)
	p.publish(t, ms...)
	r.leftByTheDead(t, p, 3)
	proof.Must(t, r.client.XTrimMaxLen(proof.Soon(t), p.stream, 1).Err())
	s := openSession(t, p.source, 10)
	_, err := s.Receive(proof.Soon(t), 10)
	if err == nil { // it may have given out the entry that is left
		err = redisEnds(t, s)
	}
	if !strings.Contains(err.Error(), "were deleted before they were handled") || strings.Count(err.Error(), "-") < 2 {
		t.Errorf("the session ends with %v", err)
	}
	ds := receive(t, openSession(t, p.source, 10), 1)
	if ds[0].Message.ID != ms[2].ID {
		t.Errorf("then comes %s", ds[0].Message.ID)
	}
}

func TestRedisTrimsWhatAllGroupsHaveAcknowledged(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{})
	trim := func(keep time.Duration, groups ...string) (int64, error) {
		return p.broker.Trim(proof.Soon(t), p.stream, keep, groups...)
	}
	wantTrimmed := func(want int64, keep time.Duration, groups ...string) {
		t.Helper()
		if n, err := trim(keep, groups...); err != nil || n != want {
			t.Fatalf("%d entries were deleted, want %d: %v", n, want, err) // which would be waited for below
		}
	}
	p.publish(t, p.messages(10)...)
	wantTrimmed(0, 0, "billing") // none was delivered
	s := openSession(t, p.source, 10)
	ds := receive(t, s, 10)
	proof.Must(t, s.Ack(proof.Soon(t), append(slices.Clone(ds[:3]), ds[5:]...)))
	wantTrimmed(0, time.Hour, "billing")
	wantTrimmed(3, 0, "billing") // the fourth is pending
	if _, err := trim(0, "billing", "audit"); err == nil || !strings.Contains(err.Error(), `"audit"`) {
		t.Fatalf("it was trimmed although a group is not declared: %v", err)
	}
	proof.Must(t, r.client.XGroupCreate(proof.Soon(t), p.stream, "audit", "0").Err())
	if _, err := trim(0, "billing"); err == nil || !strings.Contains(err.Error(), `"audit"`) {
		t.Fatalf("it was trimmed although a group was not named: %v", err)
	}
	proof.Must(t, s.Ack(proof.Soon(t), ds[3:5]))
	wantTrimmed(0, 0, "billing", "audit") // audit has read nothing
	audit := openSession(t, p.broker.Group(p.stream, "audit"), 100)
	left := receive(t, audit, 7)
	proof.Must(t, audit.Ack(proof.Soon(t), left[:6]))
	wantTrimmed(6, 0, "billing", "audit")
	proof.Must(t, audit.Return(proof.Soon(t), left[6:], 0))
	wantTrimmed(0, 0, "billing", "audit")
	if _, err := trim(0); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("it was trimmed without groups: %v", err)
	}
}

func TestRedisReadsEntriesOfOtherPrograms(t *testing.T) {
	t.Parallel()
	p := startRedis(t).place(t, redisbroker.Options{})
	proof.Must(t, p.client.XAdd(proof.Soon(t), &redis.XAddArgs{Stream: p.stream, ID: "1700000000000-7",
		Values: []string{"Kind", "paid", "amount", "5", "h.amount", "6"}}).Err())
	m := receive(t, openSession(t, p.source, 1), 1)[0].Message
	if m.ID != "" || m.Topic != p.stream || m.Header["kind"] != "paid" || m.Header["amount"] != "6" || m.Time.UnixMilli() != 1700000000000 {
		t.Errorf("the message is %+v", m)
	}
}

func TestRedisRefusesToEvictStreams(t *testing.T) {
	t.Parallel()
	p := startRedis(t).place(t, redisbroker.Options{})
	proof.Must(t, p.client.ConfigSet(proof.Soon(t), "maxmemory-policy", "allkeys-lru").Err())
	errs := p.publisher.Publish(proof.Soon(t), p.messages(1))
	if len(errs) != 1 || errs[0] == nil || errors.Is(errs[0], broker.ErrInvalid) {
		t.Errorf("Publish: %v", errs)
	}
	if _, err := p.source.Open(proof.Soon(t), 1); err == nil || !strings.Contains(err.Error(), "noeviction") {
		t.Errorf("Open: %v", err)
	}
}

// With SingleActive, one session at a time gets messages, and the next one gets
// what the last has left before anything else, in order.
func TestRedisSingleActiveKeepsOrder(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{SingleActive: true, ClaimAfter: 500 * time.Millisecond})
	first := openSession(t, p.source, 4)
	ms := p.messages(9)
	p.publish(t, ms...)
	ds := receive(t, first, 4)
	second := openSession(t, p.source, 100)
	receiveNothing(t, second, 2*time.Second)
	proof.Must(t, first.Ack(proof.Soon(t), ds[1:2]))
	proof.Must(t, first.Close(proof.Soon(t)))
	want := slices.Delete(slices.Clone(ms), 1, 2)
	for i, d := range receive(t, second, len(want)) {
		if d.Message.ID != want[i].ID {
			t.Errorf("message %d is %s, want %s", i, d.Message.ID, want[i].ID)
		}
	}
}

// activeKey returns the key of the active session.
func (r *redisServer) activeKey(tb testing.TB, p *redisPlace) string {
	tb.Helper()
	keys, err := r.client.Keys(proof.Soon(tb), "once:active:*"+p.stream+"*").Result()
	proof.Must(tb, err)
	if len(keys) != 1 {
		tb.Fatalf("the keys of active sessions are %q", keys)
	}
	return keys[0]
}

// A session that was stalled for too long ends when it finds another one active.
func TestRedisStalledActiveSessionEnds(t *testing.T) {
	t.Parallel() // most of it is waiting
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{SingleActive: true, ClaimAfter: 500 * time.Millisecond})
	first := openSession(t, p.source, 4)
	ms := p.messages(6)
	p.publish(t, ms...)
	receive(t, first, 4)
	proof.Must(t, r.client.Set(proof.Soon(t), r.activeKey(t, p), "once/another", 0).Err())
	if err := redisEnds(t, first); !strings.Contains(err.Error(), "another session") {
		t.Errorf("it ends with %v", err)
	}
	proof.Must(t, r.client.Del(proof.Soon(t), r.activeKey(t, p)).Err())
	for i, d := range receive(t, openSession(t, p.source, 100), len(ms)) { // the first four were never settled
		if d.Message.ID != ms[i].ID {
			t.Errorf("message %d is %s, want %s", i, d.Message.ID, ms[i].ID)
		}
	}
}

// A session that takes over from one that has died claims what that one has left,
// although it is not old enough for others, before it reads on.
func TestRedisSingleActiveSkipsNothingThatWasLeft(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	p := r.place(t, redisbroker.Options{SingleActive: true, ClaimAfter: time.Hour})
	ms := p.messages(5)
	p.publish(t, ms...)
	r.leftByTheDead(t, p, 3)
	s := openSession(t, p.source, 100)
	for i := range ms { // one by one, because those that a later one has overtaken may never come
		if d := receive(t, s, 1)[0]; d.Message.ID != ms[i].ID || !d.Redelivered {
			t.Fatalf("message %d is %s, redelivered %v, want %s", i, d.Message.ID, d.Redelivered, ms[i].ID)
		}
	}
}
