package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { logtest.Main(m) }

func connect(t testing.TB) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(testenv.Redis(t))
	must(t, err)
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	config, err := c.ConfigGet(context.Background(), "dir").Result()
	must(t, err)
	testenv.CheckRedis(t, config)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fresh returns a store of its own, and its prefix.
func fresh(t testing.TB, c redis.UniversalClient) (*redisstore.Store, string) {
	t.Helper()
	prefix := fmt.Sprintf("%s %d:", t.Name(), time.Now().UnixNano())
	t.Cleanup(func() {
		for _, key := range keysOf(t, c, prefix) {
			must(t, c.Del(context.Background(), key).Err())
		}
	})
	return redisstore.New(c, &redisstore.Options{Prefix: prefix}), prefix
}

func keysOf(t testing.TB, c redis.UniversalClient, prefix string) (keys []string) {
	t.Helper()
	scan := c.Scan(context.Background(), 0, prefix+"*", 1000).Iterator()
	for scan.Next(context.Background()) {
		keys = append(keys, scan.Val())
	}
	must(t, scan.Err())
	return keys
}

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open:      func(t testing.TB) once.Store { return redisstore.New(connect(t), nil) },
		ListsOpen: true,
		Expires:   true,
	})
}

// txHarness is for stores with the same options, and with a prefix of their own: a
// case needs an empty outbox. The first of them begins the transactions of the
// caller.
func txHarness(t testing.TB, o redisstore.Options) storetest.TxHarness[*redisstore.Tx] {
	c := connect(t)
	_, o.Prefix = fresh(t, c)
	var first *redisstore.Store
	return storetest.TxHarness[*redisstore.Tx]{
		Open: func(t testing.TB) once.TxStore[*redisstore.Tx] {
			s := redisstore.New(connect(t), &o)
			if first == nil {
				first = s
			}
			return s
		},
		ListsOpen: true, Expires: true, Batched: true, LearnsTime: true, ClaimsFirst: o.ClaimFirst,
		Damages:  damages(c, o.Prefix),
		Begin:    func(context.Context) (*redisstore.Tx, error) { return first.Begin(), nil },
		Commit:   func(ctx context.Context, tx *redisstore.Tx) error { return tx.Commit(ctx) },
		Rollback: func(_ context.Context, tx *redisstore.Tx) error { tx.Rollback(); return nil },
		Effect: func(ctx context.Context, tx *redisstore.Tx, name string) error {
			return tx.Incr(ctx, "row:"+name).Err()
		},
		Count: func(ctx context.Context, name string) (int, error) {
			n, err := c.Get(ctx, "row:"+name).Int()
			if errors.Is(err, redis.Nil) {
				err = nil
			}
			return n, err
		},
	}
}

func TestTxConformance(t *testing.T) {
	storetest.RunTx(t, txHarness(t, redisstore.Options{}))
}

func TestTxConformanceIfClaimsAreWrittenFirst(t *testing.T) {
	storetest.RunTx(t, txHarness(t, redisstore.Options{ClaimFirst: true}))
}

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

func answer(text string) func(context.Context, once.Key) (string, error) {
	return func(context.Context, once.Key) (string, error) { return text, nil }
}

// A server closes the connection at such an argument, often before its error is
// read.
func TestAnOutcomeOverTheLimitOfRedisIsRefused(t *testing.T) {
	s, _ := fresh(t, connect(t))
	fence := once.Fence{Key: once.Key{Operation: "pay", ID: "1"}, Owner: [16]byte{1}, Attempt: 1}
	_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour})
	must(t, err)
	set := once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}
	set.Outcome.Body = make([]byte, 512<<20+1)
	if err := s.Settle(t.Context(), set); !errors.Is(err, once.ErrOutcomeRefused) {
		t.Errorf("Settle returned %v", err)
	}
	// A commit sends the fields of the record in the same argument.
	tx := s.Begin()
	set.Outcome.Body = set.Outcome.Body[:512<<20]
	must(t, s.SettleTx(t.Context(), tx, []once.Settlement{set}))
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrOutcomeRefused) {
		t.Errorf("Commit returned %v", err)
	}
}

// Nobody has to call Forget.
func TestRedisFreesTheSpaceOfKeys(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	short := *pay
	short.Policy = once.Policy{KeepOutcome: time.Millisecond, KeepKey: 2 * time.Millisecond}
	for i := range 20 {
		_, err := once.Do(t.Context(), s, short.For(fmt.Sprint(i)), answer("paid"))
		must(t, err)
	}
	deadline := time.After(time.Minute)
	for len(keysOf(t, c, prefix)) > 0 { // SCAN drops those that have expired
		select {
		case <-deadline:
			t.Fatalf("these are left: %q", keysOf(t, c, prefix))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A key that is not done must outlive anything.
func TestOpenKeysNeverExpire(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	for _, status := range []once.Status{once.Running, once.Unknown, once.Parked} {
		key := once.Key{Operation: "pay", ID: status.String()}
		for attempt := range 2 { // the second time after a release, which expires
			fence := once.Fence{Key: key, Owner: [16]byte{byte(attempt + 1)}}
			rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour})
			must(t, err)
			fence.Attempt = rec.Attempt
			set := once.Settlement{Fence: fence, KeepKey: time.Hour, Status: status}
			if attempt == 0 {
				set.Status = once.Absent
			}
			if set.Status != once.Running {
				must(t, s.Settle(t.Context(), set))
			}
		}
	}
	for _, key := range keysOf(t, c, prefix) {
		if left, err := c.TTL(t.Context(), key).Result(); err != nil || left >= 0 {
			t.Errorf("%s expires in %v, %v", key, left, err)
		}
	}
}

func TestDamagedRecords(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(c *redis.Client, record string) *redis.IntCmd
	}{
		"the parts of another key": {func(c *redis.Client, record string) *redis.IntCmd {
			return c.HSet(t.Context(), record, "id", "other")
		}},
		"no number": {func(c *redis.Client, record string) *redis.IntCmd {
			return c.HSet(t.Context(), record, "sum", "many")
		}},
		"no time": {func(c *redis.Client, record string) *redis.IntCmd {
			return c.HDel(t.Context(), record, "keep_outcome")
		}},
		"no status": {func(c *redis.Client, record string) *redis.IntCmd {
			return c.HSet(t.Context(), record, "status", "done")
		}},
		"another type": {func(c *redis.Client, record string) *redis.IntCmd {
			must(t, c.Del(t.Context(), record).Err())
			return c.LPush(t.Context(), record, "x")
		}},
		"no outcome": {func(c *redis.Client, record string) *redis.IntCmd {
			return c.Del(t.Context(), record+":outcome")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t)
			s, prefix := fresh(t, client)
			_, err := once.Do(t.Context(), s, pay.For("1"), answer("paid"))
			must(t, err)
			for _, key := range keysOf(t, client, prefix) {
				if !strings.HasSuffix(key, ":outcome") {
					must(t, c.damage(client, key).Err())
				}
			}
			got, err := once.Do(t.Context(), s, pay.For("1"), answer("paid twice"))
			if !errors.Is(err, once.ErrCorrupt) || got != "" {
				t.Errorf("Do returned %q, %v", got, err)
			}
		})
	}
}

func TestPrefixesSeparateStores(t *testing.T) {
	c := connect(t)
	a, _ := fresh(t, c)
	b, _ := fresh(t, c)
	for _, s := range []*redisstore.Store{a, b} {
		got, err := once.Do(t.Context(), s, pay.For("1"), answer("paid"))
		if err != nil || got != "paid" {
			t.Errorf("Do returned %q, %v", got, err)
		}
		page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running}})
		if err != nil || len(page.Records) > 0 {
			t.Errorf("List returned %v, %v", page.Records, err)
		}
	}
}

func TestInvalidStores(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": connect(t).Options().Addr}})
	defer ring.Close()
	for name, s := range map[string]*redisstore.Store{
		"no client": redisstore.New(nil, nil),
		"a ring":    redisstore.New(ring, nil),
		"a brace":   redisstore.New(connect(t), &redisstore.Options{Prefix: "{shop}:"}),
	} {
		if _, err := s.Get(t.Context(), once.Key{Operation: "pay", ID: "1"}); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: Get returned %v", name, err)
		}
	}
}

// Somebody deletes records with DEL, but not their entries among the open ones.
func TestListSkipsDeletedRecords(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	const n, left = 300, 10
	var want []once.Key
	for i := range n {
		key := once.Key{Operation: "pay", ID: fmt.Sprint(i)}
		_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Hour})
		must(t, err)
		want = append(want, key)
	}
	for _, key := range want[left:] {
		id := key.UUID()
		must(t, c.Del(t.Context(), fmt.Sprintf("%s{%02x}:%x", prefix, id[0], id)).Err())
	}
	got := make(map[once.Key]bool)
	for q := (once.RecordQuery{Status: []once.Status{once.Running}, Limit: 4}); ; {
		page, err := s.List(t.Context(), q)
		must(t, err)
		for _, rec := range page.Records {
			got[rec.Key] = true
		}
		if q.After = page.Next; page.Next == (once.Key{}) {
			break
		}
	}
	for _, key := range want[:left] {
		if !got[key] {
			t.Errorf("%v is not listed", key)
		}
	}
	if len(got) != left {
		t.Errorf("%d records are listed, not %d", len(got), left)
	}
	entries := 0
	for _, key := range keysOf(t, c, prefix) {
		if strings.HasSuffix(key, "open") {
			n, err := c.ZCard(t.Context(), key).Result()
			must(t, err)
			entries += int(n)
		}
	}
	if entries != left {
		t.Errorf("%d records are among the open ones, not %d", entries, left)
	}
}

// One damaged record must not keep the reconciler from all the others.
func TestListLeavesOutDamagedRecords(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	claim := func(id string) string {
		key := once.Key{Operation: "pay", ID: id}
		_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Hour})
		must(t, err)
		uuid := key.UUID()
		return fmt.Sprintf("%s{%02x}:%x", prefix, uuid[0], uuid)
	}
	claim("whole")
	parts, kind := claim("parts"), claim("type")
	must(t, c.HSet(t.Context(), parts, "id", "other").Err())
	must(t, c.Del(t.Context(), kind).Err())
	must(t, c.LPush(t.Context(), kind, "x").Err())
	for _, member := range []string{"not a digest", strings.Repeat("ab", 17)} {
		must(t, c.ZAdd(t.Context(), prefix+"{20}:open", redis.Z{Member: member}).Err())
	}
	query := once.RecordQuery{Status: []once.Status{once.Running}}
	for range 2 {
		page, err := s.List(t.Context(), query)
		if err != nil || len(page.Records) != 1 || page.Records[0].Key.ID != "whole" || len(page.Damaged) != 4 {
			t.Errorf("List returned %v, %v, %v", page.Records, page.Damaged, err)
		}
	}
	for _, id := range []string{"parts", "type"} {
		page, err := s.List(t.Context(), once.RecordQuery{UUID: once.Key{Operation: "pay", ID: id}.UUID()})
		if err != nil || len(page.Records) > 0 || len(page.Damaged) != 1 {
			t.Errorf("List of a damaged record returned %v, %v, %v", page.Records, page.Damaged, err)
		}
	}
	must(t, c.Set(t.Context(), prefix+"{30}:open", "x", 0).Err())
	if page, err := s.List(t.Context(), query); !errors.Is(err, once.ErrCorrupt) {
		t.Errorf("List without a part of its index returned %v, %v", page.Records, err)
	}
}

// A server of a cluster may know the script, and another one not.
func TestListSendsItsScriptToTheServersThatNeedIt(t *testing.T) {
	c := connect(t)
	s, _ := fresh(t, c)
	for i := range 5 {
		_, err := s.Claim(t.Context(), request(fmt.Sprint(i), 1))
		must(t, err)
	}
	c.AddHook(firstDiffers{})
	page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running}})
	if err != nil || len(page.Records) < 4 {
		t.Errorf("List returned %d records, %v", len(page.Records), err)
	}
}

// firstDiffers makes the first script of a pipeline find a damaged record, on a
// server that knows it, and the others meet servers that do not.
type firstDiffers struct{}

func (firstDiffers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (firstDiffers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (firstDiffers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds) < 3 || cmds[1].Name() != "evalsha" {
			return next(ctx, cmds)
		}
		damaged := errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")
		cmds[1].SetErr(damaged)
		for _, cmd := range cmds[2:] {
			cmd.SetErr(noScript{})
		}
		return damaged
	}
}

type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT No matching script." }
func (noScript) RedisError()   {}

// Another server may take over, with another policy.
func TestThePolicyIsCheckedAgainAfterALostConnection(t *testing.T) {
	c := connect(t)
	o := *c.Options()
	o.MaxRetries = -1
	lossy := redis.NewClient(&o)
	t.Cleanup(func() { _ = lossy.Close() })
	s, _ := fresh(t, lossy)
	policies := new(policies)
	lossy.AddHook(policies)
	key := once.Key{Operation: "pay", ID: "1"}
	for range 2 {
		_, err := s.Get(t.Context(), key)
		must(t, err)
	}
	if policies.asked != 1 {
		t.Errorf("the policy was asked for %d times", policies.asked)
	}
	policies.lose = true
	if _, err := s.Get(t.Context(), key); err == nil {
		t.Error("Get without a connection succeeded")
	}
	policies.lose, policies.answer = false, "maxmemory_policy:allkeys-lru\r\n"
	if _, err := s.Get(t.Context(), key); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("Get on a server that drops keys returned %v", err)
	}
}

// A duplicate whose plain command met no connection is answered by a script, and
// perhaps by another server.
func TestThePolicyIsCheckedAgainAfterALostDuplicate(t *testing.T) {
	c := connect(t)
	o := *c.Options()
	o.MaxRetries = -1
	lossy := redis.NewClient(&o)
	t.Cleanup(func() { _ = lossy.Close() })
	s, _ := fresh(t, lossy)
	policies := new(policies)
	lossy.AddHook(policies)
	for range 40 { // until it expects duplicates
		_, err := once.Do(t.Context(), s, pay.For("1"), answer("paid"))
		must(t, err)
	}
	policies.loseOne, policies.answer = true, "maxmemory_policy:allkeys-lru\r\n"
	if _, err := once.Do(t.Context(), s, pay.For("1"), answer("paid")); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("a duplicate on a server that drops keys got %v", err)
	}
}

// policies counts how often a server is asked for its policy, and can answer for
// it, or lose connections.
type policies struct {
	asked   int
	answer  string
	lose    bool
	loseOne bool
}

func (p *policies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *policies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if p.lose || p.loseOne {
			p.loseOne = false
			cmd.SetErr(io.ErrUnexpectedEOF)
			return cmd.Err()
		}
		if cmd.Name() != "info" {
			return next(ctx, cmd)
		}
		if p.asked++; p.answer == "" {
			return next(ctx, cmd)
		}
		cmd.(*redis.StringCmd).SetVal(p.answer)
		return nil
	}
}

func (p *policies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// trips counts the round trips of a client, and their commands.
type trips struct{ n, commands int }

func (c *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n, c.commands = c.n+1, c.commands+1
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n, c.commands = c.n+1, c.commands+len(cmds)
		return next(ctx, cmds)
	}
}

func TestRoundTrips(t *testing.T) {
	c := connect(t)
	s, _ := fresh(t, c)
	fence := once.Fence{Key: once.Key{Operation: "pay"}, Owner: [16]byte{1}, Attempt: 1}
	claim := func(id int) {
		fence.Key.ID = fmt.Sprint(id)
		_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour})
		must(t, err)
	}
	for id := range 1100 {
		claim(id)
	}
	count := new(trips)
	c.AddHook(count)
	for name, call := range map[string]func() error{
		"Claim":  func() error { claim(2000); return nil },
		"Get":    func() error { _, err := s.Get(t.Context(), fence.Key); return err },
		"Extend": func() error { return s.Extend(t.Context(), fence, time.Hour) },
	} {
		must(t, call()) // the server may not know the script
		if *count = (trips{}); call() != nil || count.n != 1 {
			t.Errorf("%s made %d round trips", name, count.n)
		}
	}
	for _, limit := range []int{1, 1000} {
		must(t, c.ScriptFlush(t.Context()).Err()) // as when the server starts again
		*count = trips{}
		_, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Parked}, Limit: limit})
		if must(t, err); count.n > 50 || count.commands > 5000 {
			t.Errorf("a page of at most %d made %d round trips with %d commands", limit, count.n, count.commands)
		}
	}
}
