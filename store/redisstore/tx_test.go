package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

var done = once.Settlement{Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}

// settling returns a body that collects commands and settles.
func settling(collect func(*redisstore.Tx)) func(*redisstore.Tx, []once.Record) ([]once.Settlement, error) {
	return func(tx *redisstore.Tx, recs []once.Record) ([]once.Settlement, error) {
		collect(tx)
		set := done
		set.Fence = once.Fence{Key: recs[0].Key, Owner: recs[0].Owner, Attempt: recs[0].Attempt}
		return []once.Settlement{set}, nil
	}
}

func request(id string, owner byte) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "pay", ID: id}, Owner: [16]byte{owner}}, Lease: time.Hour}
}

// If the first command fails, Redis has nothing to undo but what the script wrote
// of the keys.
func TestIfTheFirstCommandFailsNothingIsApplied(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	must(t, c.Set(t.Context(), prefix+"text", "x", 0).Err())
	end := func(id string, to once.Status) int64 {
		r := request(id, 1)
		rec, err := s.Claim(t.Context(), r)
		must(t, err)
		r.Fence.Attempt = rec.Attempt
		must(t, s.Settle(t.Context(), once.Settlement{Fence: r.Fence, Status: to, KeepKey: time.Hour, Reason: "tested"}))
		return rec.Attempt
	}
	end("released", once.Absent)
	unknown := end("unknown", once.Unknown)
	dump := func() map[string]any {
		all := make(map[string]any)
		for _, key := range keysOf(t, c, prefix) {
			if strings.HasSuffix(key, "open") {
				members, err := c.ZRange(t.Context(), key, 0, -1).Result()
				must(t, err)
				all[key] = members
				continue
			}
			if fields, err := c.HGetAll(t.Context(), key).Result(); err == nil {
				all[key] = fields
			}
			at, err := c.PExpireTime(t.Context(), key).Result()
			must(t, err)
			all[key+" expires"] = at
		}
		return all
	}
	before := dump()
	for id, attempt := range map[string]int64{"new": 0, "released": 0, "unknown": unknown} {
		r := request(id, 2)
		r.Fence.Attempt = attempt
		_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, settling(func(tx *redisstore.Tx) {
			tx.LPush(t.Context(), prefix+"text", "1")
			tx.Incr(t.Context(), prefix+"count")
		}))
		if err == nil || !strings.Contains(err.Error(), "lpush") || errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked) {
			t.Errorf("Transact of a key that is %s returned %v", id, err)
		}
		if after := dump(); !reflect.DeepEqual(before, after) {
			t.Errorf("after Transact of a key that is %s there is\n%v, and was\n%v", id, after, before)
		}
	}
}

// Redis does not undo the commands before one that fails, so nothing may run
// them again.
func TestIfALaterCommandFailsItsKeyIsParked(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	must(t, c.Set(t.Context(), prefix+"text", "x", 0).Err())
	for range 2 {
		_, err := once.DoTx(t.Context(), s, pay.For("1"), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
			tx.Incr(ctx, prefix+"before")
			tx.LPush(ctx, prefix+"text", "1")
			tx.Incr(ctx, prefix+"after")
			return "paid", nil
		})
		if !errors.Is(err, once.ErrParked) || !strings.Contains(err.Error(), "command 2 of 3 (lpush) failed") {
			t.Errorf("DoTx returned %v", err)
		}
	}
	rec, err := s.Get(t.Context(), pay.For("1").Key())
	if err != nil || rec.Status != once.Parked || !strings.Contains(rec.Reason, "command 2 of 3 (lpush) failed") {
		t.Errorf("Get returned %v with the reason %q, %v", rec.Status, rec.Reason, err)
	}
	if n := c.Get(t.Context(), prefix+"before").Val(); n != "1" {
		t.Errorf("the first command ran %s times", n)
	}
	if n := c.Exists(t.Context(), prefix+"after").Val(); n != 0 {
		t.Error("the third command ran")
	}
	page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Parked}})
	if err != nil || len(page.Records) != 1 {
		t.Errorf("List returned %v, %v", page.Records, err)
	}
}

func TestCommandsThatATransactionRefuses(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	for name, collect := range map[string]func(context.Context, *redisstore.Tx){
		"EVAL":               func(ctx context.Context, tx *redisstore.Tx) { tx.Eval(ctx, "return 1", nil) },
		"SELECT":             func(ctx context.Context, tx *redisstore.Tx) { tx.Do(ctx, "SELECT", 1) },
		"nothing":            func(ctx context.Context, tx *redisstore.Tx) { _ = tx.Process(ctx, redis.NewCmd(ctx)) },
		"too many arguments": func(ctx context.Context, tx *redisstore.Tx) { tx.RPush(ctx, prefix+"list", make([]any, 8000)...) },
	} {
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request(name, 1)}, settling(func(tx *redisstore.Tx) {
			tx.Incr(t.Context(), prefix+"count")
			collect(t.Context(), tx)
		}))
		if !errors.Is(err, once.ErrInvalid) {
			t.Errorf("Transact with %s returned %v", name, err)
		}
	}
	if keys := keysOf(t, c, prefix); len(keys) > 0 {
		t.Errorf("there are keys: %q", keys)
	}
}

// Whatever way a user adds commands, they run once, and at the commit.
func TestEveryWayOfAPipelineAddsToTheTransaction(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	row := prefix + "row"
	add := func(p redis.Pipeliner) error { return p.Incr(t.Context(), row).Err() }
	_, err := s.Transact(t.Context(), []once.ClaimRequest{request("1", 1)}, settling(func(tx *redisstore.Tx) {
		must(t, add(tx))
		must(t, add(tx.Pipeline()))
		must(t, add(tx.TxPipeline()))
		for _, pipelined := range []func(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error){tx.Pipelined, tx.TxPipelined} {
			if cmds, err := pipelined(t.Context(), add); err != nil || len(cmds) != 1 {
				t.Errorf("it returned %v, %v", cmds, err)
			}
		}
		for name, err := range map[string]error{"Exec": second(tx.Exec(t.Context())), "Exec of Pipeline": second(tx.Pipeline().Exec(t.Context())),
			"Commit": tx.Commit(t.Context())} {
			if !errors.Is(err, once.ErrInvalid) {
				t.Errorf("%s in a body returned %v", name, err)
			}
		}
		tx.Rollback() // does nothing here
		if n := c.Exists(t.Context(), row).Val(); n > 0 {
			t.Error("a command ran before the commit")
		}
	}))
	must(t, err)
	if n := c.Get(t.Context(), row).Val(); n != "5" {
		t.Errorf("%s of 5 commands ran", n)
	}
}

func second[A any](_ A, err error) error { return err }

func TestATransactionWithoutKeysRunsItsCommands(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	tx := s.Begin()
	tx.Incr(t.Context(), prefix+"row")
	must(t, tx.Commit(t.Context()))
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("a second Commit returned %v", err)
	}
	if n := c.Get(t.Context(), prefix+"row").Val(); n != "1" {
		t.Errorf("the command ran %s times", n)
	}
}

// lossy is a connection that ends when the reply to something arrives.
type lossy struct {
	net.Conn
	lose     *atomic.Pointer[[]byte] // the request whose reply is lost
	lost     *atomic.Int64
	isSpoilt bool
}

func (c *lossy) Write(b []byte) (int, error) {
	if of := c.lose.Load(); of != nil && bytes.Contains(b, *of) {
		c.isSpoilt = true
	}
	return c.Conn.Write(b)
}

func (c *lossy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.isSpoilt && n > 0 {
		c.lost.Add(1)
		return 0, io.EOF
	}
	return n, err
}

// A client sends a command again whose reply was lost, and would learn that the
// record has changed, which is a conflict.
func TestACommitIsSentOnce(t *testing.T) {
	plain := connect(t)
	o := *plain.Options()
	lose, lost := new(atomic.Pointer[[]byte]), new(atomic.Int64)
	o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &lossy{Conn: conn, lose: lose, lost: lost}, err
	}
	c := redis.NewClient(&o)
	t.Cleanup(func() { _ = c.Close() })
	s, prefix := fresh(t, c)
	transact := func(id string) error {
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request(id, 1)}, settling(func(tx *redisstore.Tx) { tx.Incr(t.Context(), prefix+"row") }))
		return err
	}
	must(t, transact("1")) // the server knows the scripts now
	mark := []byte(prefix + "row")
	lose.Store(&mark)
	if err := transact("2"); !errors.Is(err, once.ErrOutcomeUnknown) || lost.Load() != 1 {
		t.Errorf("Transact returned %v after %d replies were lost", err, lost.Load())
	}
	lose.Store(nil)
	rec, err := s.Get(t.Context(), request("2", 1).Key)
	if n := plain.Get(t.Context(), prefix+"row").Val(); err != nil || rec.Status != once.Done || n != "2" {
		t.Errorf("the record is %v, %v, and %s rows were written", rec.Status, err, n)
	}
}

func TestDoTxFindsTheOutcomeOfALostReply(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	loses := &losing{fault: io.ErrUnexpectedEOF}
	c.AddHook(loses)
	got, err := once.DoTx(t.Context(), s, pay.For("1"), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
		tx.Incr(ctx, prefix+"row")
		return "paid", nil
	})
	if err != nil || got != "paid" || loses.n != 1 {
		t.Errorf("DoTx returned %q, %v after %d lost replies", got, err, loses.n)
	}
	if n := c.Get(t.Context(), prefix+"row").Val(); n != "1" {
		t.Errorf("%s rows were written", n)
	}
}

// losing loses the reply of the first commit.
type losing struct {
	fault error
	n     int
}

func (l *losing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *losing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.NoRetry() && err == nil && l.n == 0 {
			l.n++
			cmd.SetErr(l.fault)
			return l.fault
		}
		return err
	}
}

func (l *losing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A claim that is written for a transaction may be dropped by Redis, and others
// may not.
func TestAFirmClaimThatIsKeptNeverExpires(t *testing.T) {
	c := connect(t)
	s, _ := fresh(t, c)
	r := request("1", 1)
	r.Firm, r.Lease = true, time.Minute
	stop := errors.New("stop")
	_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, func(_ *redisstore.Tx, recs []once.Record) ([]once.Settlement, error) {
		fence := once.Fence{Key: r.Key, Owner: r.Owner, Attempt: recs[0].Attempt}
		record := keyOf(t, c, fmt.Sprintf("%x", r.Key.UUID()))
		if left := c.TTL(t.Context(), record).Val(); left < 24*time.Hour {
			t.Errorf("a firm claim expires in %v", left)
		}
		must(t, s.Extend(t.Context(), fence, time.Hour))
		if left := c.TTL(t.Context(), record).Val(); left < 24*time.Hour+30*time.Minute {
			t.Errorf("a firm claim that was extended expires in %v", left)
		}
		must(t, s.Settle(t.Context(), once.Settlement{Fence: fence, Status: once.Parked}))
		if left := c.TTL(t.Context(), record).Val(); left >= 0 {
			t.Errorf("a parked record expires in %v", left)
		}
		return nil, stop
	})
	if !errors.Is(err, stop) {
		t.Errorf("Transact returned %v", err)
	}
	if rec, err := s.Get(t.Context(), r.Key); err != nil || rec.Status != once.Parked {
		t.Errorf("Get returned %v, %v", rec.Status, err)
	}
}

func keyOf(t *testing.T, c *redis.Client, part string) string {
	t.Helper()
	keys := keysOf(t, c, "*"+part)
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":outcome") })
	if len(keys) != 1 {
		t.Fatalf("the keys with %s are %q", part, keys)
	}
	return keys[0]
}

// The core asks for a firm claim after a lost commit. If its process dies, the
// key is free when the lease has lapsed: for Claim, too.
func TestAFirmClaimThatLapsesIsReleased(t *testing.T) {
	c := connect(t)
	s, _ := fresh(t, c)
	r := request("1", 1)
	r.Firm, r.Lease = true, 5*time.Millisecond
	_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, func(*redisstore.Tx, []once.Record) ([]once.Settlement, error) {
		deadline := time.After(time.Minute)
		for {
			rec, err := s.Get(t.Context(), r.Key)
			if must(t, err); rec.Status == once.Absent && rec.Attempt == 1 {
				break
			}
			select {
			case <-deadline:
				t.Fatalf("the record is %v", rec.Status)
			case <-time.After(time.Millisecond):
			}
		}
		again := request("1", 2)
		if rec, err := s.Claim(t.Context(), again); err != nil || !rec.HeldBy(again.Owner) || rec.Attempt != 2 {
			t.Errorf("Claim returned %v, %v", rec, err)
		}
		return nil, nil
	})
	if !errors.Is(err, once.ErrConflict) {
		t.Errorf("a transaction whose claim was taken over returned %v", err)
	}
	if rec, err := s.Get(t.Context(), r.Key); err != nil || !rec.HeldBy([16]byte{2}) {
		t.Errorf("Get returned %v, %v", rec, err)
	}
}

func TestRoundTripsOfTransactions(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	run := func(op *once.Operation[string], id string) func() {
		return func() {
			_, err := once.DoTx(t.Context(), s, op.For(id), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
				tx.Incr(ctx, prefix+"row")
				return "paid", nil
			})
			must(t, err)
		}
	}
	speculative := *pay
	speculative.Speculative = true
	run(pay, "0")()
	count := new(trips)
	c.AddHook(count)
	for _, is := range []struct {
		what string
		call func()
		want int
	}{
		{"a new key", run(pay, "1"), 2},
		{"a duplicate", run(pay, "1"), 1},
		{"a new key, with Speculative", run(&speculative, "2"), 1},
	} {
		*count = trips{}
		if is.call(); count.n != is.want {
			t.Errorf("%s made %d round trips", is.what, count.n)
		}
	}
}

// What the client cannot write is not sent, so the outcome is known.
func TestAnArgumentThatTheClientCannotWriteIsRefused(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	type status string
	for name, value := range map[string]any{"a struct": struct{ A int }{1}, "a string of another type": status("paid"),
		"one that fails": failing{}} {
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request(name, 1)}, settling(func(tx *redisstore.Tx) {
			tx.Incr(t.Context(), prefix+"count")
			tx.Set(t.Context(), prefix+"value", value, 0)
		}))
		if !errors.Is(err, once.ErrInvalid) || errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("%s: Transact returned %v", name, err)
		}
	}
	if n, err := c.Exists(t.Context(), prefix+"count").Result(); n != 0 || err != nil {
		t.Errorf("a command was applied: %d, %v", n, err)
	}
}

type failing struct{}

func (failing) MarshalBinary() ([]byte, error) { return nil, io.ErrUnexpectedEOF }

// A command that a script cannot run fails only after those before it were
// applied.
func TestCommandsThatNoScriptRunsAreRefused(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	commands, err := c.Command(t.Context()).Result()
	must(t, err)
	for name, info := range commands {
		if !slices.Contains(info.Flags, "noscript") {
			continue
		}
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request(name, 1)}, settling(func(tx *redisstore.Tx) {
			tx.Incr(t.Context(), prefix+"count")
			tx.Do(t.Context(), name, "x")
		}))
		if !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: Transact returned %v", name, err)
		}
	}
}

// A transaction takes over an unknown attempt, and its lease lapses before its
// commit arrives. Its caller has begun another one meanwhile.
func TestAFirmClaimRefusesAnEarlierCommitAlsoIfTheLeaseHasLapsed(t *testing.T) {
	s, prefix := fresh(t, connect(t))
	r := request("1", 1)
	rec, err := s.Claim(t.Context(), r)
	must(t, err)
	r.Fence.Attempt = rec.Attempt
	must(t, s.Settle(t.Context(), once.Settlement{Fence: r.Fence, Status: once.Unknown}))

	r.Owner, r.Lease, r.Firm = [16]byte{2}, 50*time.Millisecond, true
	failed := errors.New("the work failed")
	_, err = s.Transact(t.Context(), []once.ClaimRequest{r}, settling(func(tx *redisstore.Tx) {
		tx.Incr(t.Context(), prefix+"count")
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if rec, err := s.Get(t.Context(), r.Key); err == nil && rec.Status == once.Unknown {
				break
			}
		}
		r.Lease = time.Hour
		entered := false
		_, err := s.Transact(t.Context(), []once.ClaimRequest{r}, func(*redisstore.Tx, []once.Record) ([]once.Settlement, error) {
			entered = true
			return nil, failed
		})
		if !entered || !errors.Is(err, failed) {
			t.Errorf("the second transaction entered its work: %v, and returned %v", entered, err)
		}
	}))
	if !errors.Is(err, once.ErrConflict) {
		t.Errorf("the commit of the first transaction returned %v", err)
	}
}
