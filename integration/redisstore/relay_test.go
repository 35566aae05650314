//go:build linux

package redisstore

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

// relayVar makes the test program a relay: it is the address of a server.
const relayVar = "ONCE_REDIS_RELAY"

// sentList has the IDs of published messages.
const sentList = "sent"

// listing is a publisher that appends to a list.
type listing struct{ client *redis.Client }

func (l listing) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := make([]error, len(ms))
	for i, m := range ms {
		errs[i] = l.client.RPush(ctx, sentList, m.ID).Err()
	}
	return errs
}

func (listing) Close() error { return nil }

// relay runs a relay until the process is killed.
func relay() int {
	c := redis.NewClient(&redis.Options{Addr: os.Getenv(relayVar)})
	r := &outbox.Relay{Store: redisstore.New(c, nil), Publisher: listing{c}}
	if err := r.Run(context.Background()); err != nil {
		return 1
	}
	return 0
}

// Redis cannot tell that a process has ended. The lanes of a relay that was killed are
// free when its leases lapse, within ten seconds.
func TestLanesOfAKilledRelayAreFreeInTenSeconds(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	c := n.client(t)
	s := redisstore.New(c, nil)
	sent := func(want int64) {
		t.Helper()
		proof.Await(t, "all messages are out", func() bool {
			proof.Pause(10 * time.Millisecond)
			return c.LLen(proof.Soon(t), sentList).Val() >= want
		})
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), relayVar+"="+c.Options().Addr)
	proof.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	proof.Must(t, write(t.Context(), s, "a"))
	sent(1) // its lanes are leased
	proof.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()

	killed := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	heir := &outbox.Relay{Store: s, Publisher: listing{c}, Logger: proof.Logger(t)}
	go func() { ended <- heir.Run(ctx) }()
	proof.Must(t, write(t.Context(), s, "b"))
	var slow time.Duration // by how much longer than on an idle machine the waiting took
	for c.LLen(proof.Soon(t), sentList).Val() < 2 {
		begun := time.Now()
		proof.Must(t, c.Set(proof.Soon(t), "drag", "1", 0).Err())
		proof.Pause(10 * time.Millisecond)
		slow += max(time.Since(begun)-20*time.Millisecond, 0)
		if time.Since(killed) > proof.Patience {
			t.Fatal("nothing was published after a relay was killed")
		}
	}
	if took := time.Since(killed); took > 10*time.Second+2*slow {
		t.Errorf("the lanes of a relay that was killed were free after %v, and the machine was slow by %v", took, slow)
	}
	stop()
	proof.Must(t, <-ended)
}
