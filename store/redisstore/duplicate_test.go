package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

// counts is how often a client has sent each command alone.
type counts struct {
	mu sync.Mutex
	by map[string]int
}

func (*counts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.mu.Lock()
		if c.by == nil {
			c.by = make(map[string]int)
		}
		c.by[cmd.Name()]++
		c.mu.Unlock()
		return next(ctx, cmd)
	}
}

// of returns the sum of some commands.
func (c *counts) of(names ...string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		n += c.by[name]
	}
	return n
}

func (c *counts) scripts() int { return c.of("eval", "evalsha") }

func (*counts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A store that meets many finished keys answers them without a script, with the
// same records. Others are left to the script.
func TestDuplicatesWithoutAScript(t *testing.T) {
	c := connect(t)
	counted := new(counts)
	c.AddHook(counted)
	s, _ := fresh(t, c)
	request := func(id string) once.ClaimRequest {
		return once.ClaimRequest{Fence: once.Fence{Key: once.Key{Scope: "s", Operation: "op", ID: id}, Attempt: 1, Owner: [16]byte{1}},
			Fingerprint: []byte("print\x00"), Cause: [16]byte{3}, Lease: time.Minute}
	}
	settle := func(id string, keep time.Duration, out once.Outcome) {
		t.Helper()
		r := request(id)
		_, err := s.Claim(t.Context(), r)
		must(t, err)
		must(t, s.Settle(t.Context(), once.Settlement{Fence: r.Fence, Status: once.Done, Outcome: out, KeepOutcome: keep, KeepKey: time.Hour}))
	}
	claim := func(id string) (once.Record, int) {
		t.Helper()
		r := request(id)
		r.Owner[0] = 2
		before := counted.scripts()
		rec, err := s.Claim(t.Context(), r)
		must(t, err)
		return rec, counted.scripts() - before
	}
	settle("1", time.Minute, once.Outcome{Body: []byte("paid\xff"), ContentType: "text/plain", Rejected: true, Sum: 7})
	settle("empty", time.Minute, once.Outcome{})
	settle("short", time.Millisecond, once.Outcome{Body: []byte("paid")})
	by := func(id string) (rec once.Record, n int) {
		for range 40 { // until it expects duplicates
			rec, n = claim(id)
		}
		return rec, n
	}
	for _, id := range []string{"1", "empty"} {
		with, err := s.Get(t.Context(), request(id).Key)
		must(t, err)
		without, n := by(id)
		if n != 0 {
			t.Errorf("a duplicate of %q took %d scripts", id, n)
		}
		if off := with.OutcomeLeft - without.OutcomeLeft; off < -time.Second || off > time.Second {
			t.Errorf("the outcome has %v left with a script, and %v without", with.OutcomeLeft, without.OutcomeLeft)
		}
		with.OutcomeLeft, without.OutcomeLeft, with.Age, without.Age = 0, 0, 0, 0
		if fmt.Sprintf("%+v", with) != fmt.Sprintf("%+v", without) {
			t.Errorf("with a script the record is\n%+v\nand without\n%+v", with, without)
		}
	}
	if rec, n := claim("short"); rec.Status != once.Expired || n != 1 {
		t.Errorf("a key whose outcome has expired is %v, after %d scripts", rec.Status, n)
	}
	by("1")
	transfer := func() int {
		t.Helper()
		before, op := counted.scripts(), &once.Operation[string]{Name: "transfer", OnUnknown: once.Park}
		got, err := once.DoTx(t.Context(), s, op.For("1"), func(context.Context, *redisstore.Tx) (string, error) { return "sent", nil })
		if err != nil || got != "sent" {
			t.Fatal(got, err)
		}
		return counted.scripts() - before
	}
	transfer()
	by("1")
	if n := transfer(); n != 0 {
		t.Errorf("a duplicate of a transaction took %d scripts", n)
	}
	must(t, s.Reopen(t.Context(), request("1").Fence, time.Hour, "again"))
	if rec, n := claim("1"); rec.Status != once.Running || n != 1 {
		t.Errorf("a reopened key is %v, after %d scripts", rec.Status, n)
	}
	by("empty")
	if rec, n := claim("new"); rec.Status != once.Running || n != 1 {
		t.Errorf("a new key is %v, after %d scripts", rec.Status, n)
	}
}

// A server that has no GETEX, or a user who may not send it, is asked once.
func TestDuplicatesWithoutGETEX(t *testing.T) {
	c := connect(t)
	must(t, c.Do(t.Context(), "ACL", "SETUSER", "old", "reset", "on", ">secret", "~*", "&*", "+@all", "-getex").Err())
	t.Cleanup(func() { c.Do(context.Background(), "ACL", "DELUSER", "old") })
	o := *c.Options()
	o.Username, o.Password = "old", "secret"
	old := redis.NewClient(&o)
	t.Cleanup(func() { _ = old.Close() })
	refused := new(counts)
	old.AddHook(refused)
	s, _ := fresh(t, old)
	op := &once.Operation[string]{Name: "pay", OnUnknown: once.Park}
	for range 60 {
		got, err := once.Do(t.Context(), s, op.For("1"), func(context.Context, once.Key) (string, error) { return "paid", nil })
		if err != nil || got != "paid" {
			t.Fatal(got, err)
		}
	}
	if n := refused.of("getex"); n != 1 {
		t.Errorf("GETEX was sent %d times", n)
	}
}
