//go:build linux

package redisstore

import (
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
