//go:build linux

package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

// A script that fails is not rolled back.
func TestASettlementWithoutPermissionLeavesTheRecord(t *testing.T) {
	s := start(t)
	admin, ctx := dial(t, s), proof.Soon(t)
	for command, statuses := range map[string][]once.Status{
		"set":       {once.Done},
		"pexpireat": {once.Done},
		"zrem":      {once.Done, once.Absent},
	} {
		for _, status := range statuses {
			proof.Must(t, admin.Do(ctx, "ACL", "SETUSER", "worker", "reset", "on", ">pw", "~*", "+@all", "-"+command).Err())
			o, err := redis.ParseURL(s.DSN())
			proof.Must(t, err)
			o.Username, o.Password, o.MaxRetries = "worker", "pw", -1
			c := redis.NewClient(o)
			t.Cleanup(func() { _ = c.Close() })
			store := redisstore.New(c, nil)
			fence := once.Fence{Key: once.Key{Operation: command, ID: status.String()}, Owner: [16]byte{1}, Attempt: 1}
			_, err = store.Claim(ctx, once.ClaimRequest{Fence: fence, Lease: time.Hour})
			proof.Must(t, err)
			set := once.Settlement{Fence: fence, Status: status, KeepOutcome: time.Hour, KeepKey: time.Hour,
				Outcome: once.Outcome{Body: []byte("paid")}}
			if err := store.Settle(ctx, set); err == nil {
				t.Errorf("Settle as %v without %s succeeded", status, command)
			}
			rec, err := store.Get(ctx, fence.Key)
			if err != nil || rec.Status != once.Running {
				t.Errorf("after Settle as %v without %s: Get returned %v %q, %v", status, command, rec.Status, rec.Outcome.Body, err)
			}
			proof.Must(t, admin.Do(ctx, "ACL", "SETUSER", "worker", "+"+command).Err())
			if err := store.Settle(ctx, set); err != nil {
				t.Errorf("Settle as %v: %v", status, err)
			}
			rec, err = store.Get(ctx, fence.Key)
			if err != nil || rec.Status != status || status == once.Done && string(rec.Outcome.Body) != "paid" {
				t.Errorf("Get returned %v %q, %v", rec.Status, rec.Outcome.Body, err)
			}
		}
	}
}

// A duplicate is answered from the outcome alone, so a script that fails must not
// leave one where the record has none.
func TestADuplicateAfterAFailedScriptIsWhatItsRecordSays(t *testing.T) {
	s := start(t)
	admin, ctx := dial(t, s), proof.Soon(t)
	may := func(rule string) { proof.Must(t, admin.Do(ctx, "ACL", "SETUSER", "worker", rule).Err()) }
	for _, rule := range []string{"reset", "on", ">pw", "~*", "+@all"} {
		may(rule)
	}
	o, err := redis.ParseURL(s.DSN())
	proof.Must(t, err)
	o.Username, o.Password, o.MaxRetries = "worker", "pw", -1
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	worker, other := redisstore.New(c, nil), redisstore.New(admin, nil)
	claim := func(s *redisstore.Store, id string, owner byte) once.Record {
		t.Helper()
		rec, err := s.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: parking.For(id).Key(), Owner: [16]byte{owner}, Attempt: 1}, Lease: time.Hour})
		proof.Must(t, err)
		return rec
	}
	settled := func(id string) once.Settlement {
		return once.Settlement{Fence: once.Fence{Key: parking.For(id).Key(), Owner: [16]byte{1}, Attempt: 1}, Status: once.Done,
			KeepOutcome: time.Hour, KeepKey: time.Hour, Outcome: once.Outcome{Body: []byte("paid")}}
	}
	finish := func(id string) {
		t.Helper()
		claim(worker, id, 1)
		proof.Must(t, worker.Settle(ctx, settled(id)))
	}
	finish("finished")
	check := func(what, id string, want once.Status) {
		t.Helper()
		for range 40 { // until it expects duplicates
			claim(other, "finished", 2)
		}
		is, err := other.Get(ctx, parking.For(id).Key())
		proof.Must(t, err)
		if is.Status != want {
			t.Errorf("%s: the record is %v, want %v", what, is.Status, want)
		}
		if dup := claim(other, id, 1); dup.Status != want {
			t.Errorf("%s: the record is %v, and a duplicate was told %v %q", what, is.Status, dup.Status, dup.Outcome.Body)
		}
	}
	for _, command := range []string{"set", "pexpireat", "hset"} {
		claim(worker, command, 1)
		may("-" + command)
		if err := worker.Settle(ctx, settled(command)); err == nil {
			t.Errorf("Settle without %s succeeded", command)
		}
		may("+" + command)
		check("settled without "+command, command, once.Running)
	}
	for _, command := range []string{"set", "pexpireat"} {
		id := "transaction without " + command
		may("-" + command)
		_, err := once.DoTx(ctx, worker, parking.For(id), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
			return "paid", tx.Incr(ctx, "row").Err()
		})
		if err == nil {
			t.Error(id, "succeeded")
		}
		may("+" + command)
		check(id, id, once.Parked)
	}
	for _, command := range []string{"del", "hset"} {
		id := "reopened without " + command
		finish(id)
		may("-" + command)
		if err := worker.Reopen(ctx, settled(id).Fence, time.Hour, "again"); err == nil {
			t.Error(id, "succeeded")
		}
		may("+" + command)
		check(id, id, once.Done)
	}
}
