package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/redis/go-redis/v9"
)

// scripts counts the scripts that a client runs.
type scripts struct {
	mu sync.Mutex
	n  int
}

func (*scripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			s.mu.Lock()
			s.n++
			s.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (*scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A store that meets many finished keys answers them without a script, with the
// same records. Others are left to the script.
func TestDuplicatesWithoutAScript(t *testing.T) {
	c := connect(t)
	counted := new(scripts)
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
		before := counted.n
		rec, err := s.Claim(t.Context(), r)
		must(t, err)
		return rec, counted.n - before
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
	if rec, n := claim("new"); rec.Status != once.Running || n != 1 {
		t.Errorf("a new key is %v, after %d scripts", rec.Status, n)
	}
}
