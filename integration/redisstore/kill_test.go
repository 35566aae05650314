//go:build linux

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

// workerVar makes the test program a worker: the address of a server, the
// boundary at which it dies, and the IDs of its work.
const workerVar = "ONCE_REDIS_WORKER"

// boundaries are where a worker dies: before a request is written, when it is on
// its way, and when its answer has arrived.
var boundaries = []string{"before", "sent", "after"}

func work() int {
	part := strings.Split(os.Getenv(workerVar), " ")
	at, _ := strconv.ParseInt(part[2], 10, 64)
	dies := &dying{where: part[1], at: at}
	c := redis.NewClient(&redis.Options{Addr: part[0], Dialer: dies.dial})
	c.AddHook(dies)
	s := redisstore.New(c, &redisstore.Options{ClaimFirst: part[3] == "claims"})
	for _, id := range part[4:] {
		if err := write(context.Background(), s, id); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return 0
}

// write counts a row, lists its ID and puts a message, all together with its key.
func write(ctx context.Context, s *redisstore.Store, id string) error {
	op := &once.Operation[string]{Name: "pay", OnUnknown: once.Resend, Policy: once.Policy{Lease: 2 * time.Second}}
	got, err := once.DoTx(ctx, s, op.For(id), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
		tx.Incr(ctx, "row "+id)
		tx.RPush(ctx, "rows", id)
		return "paid " + id, s.PutTx(ctx, tx, []store.Outgoing{outgoing(id, "")})
	})
	if err == nil && got != "paid "+id {
		err = fmt.Errorf("the answer of %s is %q", id, got)
	}
	return err
}

// messages returns how often the message of an ID is in the outbox.
func messages(t *testing.T, s *redisstore.Store, id string) int {
	t.Helper()
	all, err := s.Outgoing(proof.Soon(t), store.OutgoingQuery{State: store.Pending, IDs: []string{id}, Bodiless: true})
	proof.Must(t, err)
	return len(all)
}

// dying kills its process at a boundary.
type dying struct {
	where string
	at    int64
	n     atomic.Int64
}

func (d *dying) pass(where string) {
	if where == d.where && d.n.Add(1) == d.at {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (d *dying) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &dyingConn{conn, d}, err
}

type dyingConn struct {
	net.Conn
	dying *dying
}

func (c *dyingConn) Write(b []byte) (int, error) {
	c.dying.pass("before")
	n, err := c.Conn.Write(b)
	c.dying.pass("sent")
	return n, err
}

func (d *dying) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *dying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		d.pass("after")
		return err
	}
}

func (d *dying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// runWorker runs a worker, and kills it after a while unless that is 0. It
// reports whether it was killed.
func runWorker(t *testing.T, while time.Duration, args ...string) (killed bool) {
	t.Helper()
	ctx := proof.Soon(t)
	if while > 0 {
		limited, cancel := context.WithTimeout(ctx, while)
		defer cancel()
		ctx = limited
	}
	cmd := exec.CommandContext(ctx, os.Args[0]) // which kills at the end of ctx
	cmd.Env = append(os.Environ(), workerVar+"="+strings.Join(args, " "))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	if err != nil && ctx.Err() == nil {
		t.Errorf("a worker ended with %v: %s", err, out)
	}
	return false
}

func TestWorkersThatDieAtEachRequestOfATransaction(t *testing.T) {
	n := startNode(t)
	c, s := n.client(t), redisstore.New(n.client(t), nil)
	for _, claims := range []string{"reads", "claims"} {
		for _, where := range boundaries {
			deaths := 0
			for at := 1; ; at++ {
				id := fmt.Sprintf("%s-%s-%d", claims, where, at)
				if !runWorker(t, 0, n.address, where, strconv.Itoa(at), claims, id) {
					break
				}
				deaths++
				rows, _ := c.Get(proof.Soon(t), "row "+id).Int() // 0 if there are none
				if n := messages(t, s, id); n != rows {
					t.Errorf("a death %s request %d left %d rows and %d messages", where, at, rows, n)
				}
				if runWorker(t, 0, n.address, "never", "0", claims, id) {
					t.Fatal("a worker died that should not")
				}
				if rows := c.Get(proof.Soon(t), "row "+id).Val(); rows != "1" {
					t.Errorf("after a death %s request %d, %q rows were written", where, at, rows)
				}
				if n := messages(t, s, id); n != 1 {
					t.Errorf("after a death %s request %d, %d messages were put", where, at, n)
				}
			}
			if deaths < 3 {
				t.Errorf("only %d workers died %s a request", deaths, where)
			}
		}
	}
}

// Workers race in the same work, and are killed at random moments.
func TestWorkersThatAreKilledWhileTheyRace(t *testing.T) {
	const ids, rivals = 400, 3
	n := startNode(t)
	c, seed := n.client(t), proof.Seed(t)
	var all []string
	for i := range ids {
		all = append(all, fmt.Sprint(i))
	}
	var kills atomic.Int64
	var racing sync.WaitGroup
	for rival := range rivals {
		racing.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(rival)))
			for done := 0; done < 12; done++ {
				mine := append([]string(nil), all...)
				random.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				claims := []string{"reads", "claims"}[random.IntN(2)]
				if runWorker(t, time.Duration(30+random.IntN(200))*time.Millisecond, append([]string{n.address, "never", "0", claims}, mine...)...) {
					kills.Add(1)
				}
			}
		})
	}
	racing.Wait()
	s := redisstore.New(c, nil)
	for _, id := range all {
		proof.Must(t, write(proof.Soon(t), s, id))
		if rows := c.Get(proof.Soon(t), "row "+id).Val(); rows != "1" {
			t.Errorf("%q rows of %s were written", rows, id)
		}
		if n := messages(t, s, id); n != 1 {
			t.Errorf("%d messages of %s were put", n, id)
		}
	}
	if listed := c.LLen(proof.Soon(t), "rows").Val(); listed != ids {
		t.Errorf("%d rows are listed, not %d", listed, ids)
	}
	if kills.Load() < 5 {
		t.Errorf("only %d workers were killed", kills.Load())
	}
	t.Logf("%d workers were killed", kills.Load())
}
