package cosmosstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store/cosmosstore"
)

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

// claim claims a key for an hour, and returns its fence.
func claim(t testing.TB, s once.Store, k once.Key, lease time.Duration) once.Fence {
	t.Helper()
	fence := once.Fence{Key: k, Owner: [16]byte{1}}
	rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: lease})
	must(t, err)
	fence.Attempt = rec.Attempt
	return fence
}

func settle(t testing.TB, s once.Store, fence once.Fence, is once.Status, keepOutcome, keepKey time.Duration) {
	t.Helper()
	must(t, s.Settle(t.Context(), once.Settlement{Fence: fence, Status: is, KeepOutcome: keepOutcome, KeepKey: keepKey,
		Outcome: once.Outcome{Body: []byte("paid")}}))
}

// The replicas that answer reads have seen nothing since the containers were
// empty.
func TestNoAnswerDependsOnTheConsistencyLevel(t *testing.T) {
	for _, level := range []fakecosmos.Level{fakecosmos.Strong, fakecosmos.Bounded, fakecosmos.Session, fakecosmos.Prefix, fakecosmos.Eventual} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // otherwise DoTx tries again for a minute
		defer cancel()
		a := newAccount(t)
		a.SetLevel(level)
		a.Freeze()
		one, other := a.store(), a.store()
		settle(t, one, claim(t, one, pay.For("1").Key(), time.Hour), once.Done, time.Hour, time.Hour)
		if rec, err := other.Get(t.Context(), pay.For("1").Key()); err != nil || rec.Status != once.Done {
			t.Errorf("%s: Get returned %v, %v", level, rec.Status, err)
		}
		entered := 0
		run := func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
			entered++
			tx.CreateItem(effect("row"))
			return "paid", nil
		}
		for _, s := range []*cosmosstore.Store{one, other, one} {
			if got, err := once.DoTx(ctx, s, pay.For("2"), run); err != nil || got != "paid" {
				t.Errorf("%s: DoTx returned %q, %v", level, got, err)
			}
		}
		a.Thaw()
		if n, err := a.effects("row"); err != nil || n != 1 || entered != 1 {
			t.Errorf("%s: the work was entered %d times, with %d effects, %v", level, entered, n, err)
		}
	}
}

func TestThrottlingIsWaitedFor(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	refusals := 0
	a.SetThrottle(func(r fakecosmos.Request) (time.Duration, bool) {
		refusals++
		return 3 * time.Millisecond, r.N%6 != 0
	})
	_, err := once.Do(t.Context(), s, pay.For("1"), func(context.Context, once.Key) (string, error) { return "paid", nil })
	must(t, err)
	_, err = once.DoTx(t.Context(), s, pay.For("2"), func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
		tx.CreateItem(effect("row"))
		return "paid", nil
	})
	must(t, err)
	a.SetThrottle(nil)
	if n, err := a.effects("row"); err != nil || n != 1 || refusals < 20 {
		t.Errorf("%d requests were refused, and there are %d effects, %v", refusals, n, err)
	}
	a.SetThrottle(func(fakecosmos.Request) (time.Duration, bool) { return time.Millisecond, true })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Get(ctx, pay.For("1").Key()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the deadline, Get returned %v", err)
	}
}

func TestUnsuitableContainersAreRefused(t *testing.T) {
	a := newAccount(t)
	forever := int32(-1)
	paths := func(all ...string) azcosmos.PartitionKeyDefinition {
		return azcosmos.PartitionKeyDefinition{Paths: all}
	}
	for id, c := range map[string]struct {
		properties azcosmos.ContainerProperties
		want       string
	}{
		"no-ttl": {azcosmos.ContainerProperties{}, "no time to live"},
		"unique": {azcosmos.ContainerProperties{DefaultTimeToLive: &forever, UniqueKeyPolicy: &azcosmos.UniqueKeyPolicy{
			UniqueKeys: []azcosmos.UniqueKey{{Paths: []string{"/email"}}}}}, "unique keys"},
		"nested": {azcosmos.ContainerProperties{DefaultTimeToLive: &forever, PartitionKeyDefinition: paths("/a/b")}, "first level"},
		"taken":  {azcosmos.ContainerProperties{DefaultTimeToLive: &forever, PartitionKeyDefinition: paths("/once")}, "property of records"},
		"id":     {azcosmos.ContainerProperties{DefaultTimeToLive: &forever, PartitionKeyDefinition: paths("/id")}, "Options.Partition"},
	} {
		s := cosmosstore.New(a.create(id, c.properties), &cosmosstore.Options{Partition: one})
		if _, err := s.Get(t.Context(), pay.For("1").Key()); !errors.Is(err, once.ErrInvalid) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: Get returned %v, want %q", id, err, c.want)
		}
	}
	if _, err := cosmosstore.New(nil, nil).Get(t.Context(), pay.For("1").Key()); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("without a container, Get returned %v", err)
	}
	s := cosmosstore.New(a.container("id"), nil) // whose records are their own partition keys
	settle(t, s, claim(t, s, pay.For("1").Key(), time.Hour), once.Done, time.Hour, time.Hour)
}

func TestATransactionThatTheServiceCannotTakeIsNotSent(t *testing.T) {
	a := newAccount(t)
	s := cosmosstore.New(a.container("keys"), &cosmosstore.Options{Partition: cosmosstore.ByScope})
	_, err := s.Get(t.Context(), pay.For("1").Key())
	must(t, err)
	for name, write := range map[string]func(*cosmosstore.Tx){
		"too many": func(tx *cosmosstore.Tx) {
			for range 100 {
				tx.DeleteItem("x", nil)
			}
		},
		"too large": func(tx *cosmosstore.Tx) {
			tx.CreateItem([]byte(`{"id":"1","customer":"c1","x":"` + strings.Repeat("x", 2<<20) + `"}`))
		},
		"another partition":     func(tx *cosmosstore.Tx) { tx.UpsertItem([]byte(`{"id":"1","customer":"c2"}`), nil) },
		"no partition":          func(tx *cosmosstore.Tx) { tx.CreateItem([]byte(`{"id":"1"}`)) },
		"no text":               func(tx *cosmosstore.Tx) { tx.CreateItem([]byte(`{"id":"1","customer":7}`)) },
		"no JSON":               func(tx *cosmosstore.Tx) { tx.CreateItem([]byte(`{`)) },
		"an id that is escaped": func(tx *cosmosstore.Tx) { tx.DeleteItem(`1","id":"2`, nil) },
		"no id":                 func(tx *cosmosstore.Tx) { tx.ReplaceItem("", []byte(`{"customer":"c1"}`), nil) },
	} {
		before := a.Requests()
		work := pay.For("1").In("c1")
		_, err := once.DoTx(t.Context(), s, work, func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
			write(tx)
			return "paid", nil
		})
		if !errors.Is(err, once.ErrInvalid) || a.Requests() != before+1 { // the look at the key
			t.Errorf("%s: DoTx returned %v after %d requests", name, err, a.Requests()-before)
		}
	}
	tx := s.Begin()
	_, err = s.ClaimTx(t.Context(), tx, []once.ClaimRequest{
		{Fence: once.Fence{Key: once.Key{Scope: "c1", Operation: "pay", ID: "1"}, Owner: [16]byte{1}}, Lease: time.Hour},
		{Fence: once.Fence{Key: once.Key{Scope: "c2", Operation: "pay", ID: "1"}, Owner: [16]byte{1}}, Lease: time.Hour},
	})
	must(t, err)
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("the commit of records with two partition keys returned %v", err)
	}
}

// An item that the work read has changed by its commit: the work is called again.
// Any other refusal is an error.
func TestRefusedWrites(t *testing.T) {
	a := newAccount(t)
	s, container := a.store(), a.container("keys")
	key := azcosmos.NewPartitionKeyString("c1")
	account := func(balance int) []byte {
		return fmt.Appendf(nil, `{"id":"account","customer":"c1","balance":%d}`, balance)
	}
	_, err := container.CreateItem(t.Context(), key, account(10), nil)
	must(t, err)
	runs := 0
	_, err = once.DoTx(t.Context(), s, pay.For("1"), func(ctx context.Context, tx *cosmosstore.Tx) (string, error) {
		runs++
		got, err := container.ReadItem(ctx, key, "account", nil)
		if err != nil {
			return "", err
		}
		if runs == 1 {
			if _, err := container.ReplaceItem(ctx, key, "account", account(20), nil); err != nil {
				return "", err
			}
		}
		var is struct{ Balance int }
		if err := json.Unmarshal(got.Value, &is); err != nil {
			return "", err
		}
		tx.ReplaceItem("account", account(is.Balance-5), &azcosmos.TransactionalBatchItemOptions{IfMatchETag: &got.ETag})
		return "paid", nil
	})
	must(t, err)
	if got, err := container.ReadItem(t.Context(), key, "account", nil); err != nil || runs != 2 || !strings.Contains(string(got.Value), `"balance":15`) {
		t.Errorf("after %d runs the account is %s, %v", runs, got.Value, err)
	}
	var poor azcosmos.PatchOperations
	poor.SetCondition("from c where c.balance >= 100")
	poor.AppendIncrement("/balance", -100)
	for want, write := range map[int]func(*cosmosstore.Tx){
		409: func(tx *cosmosstore.Tx) { tx.CreateItem(account(1)) },
		404: func(tx *cosmosstore.Tx) { tx.DeleteItem("nobody", nil) },
		412: func(tx *cosmosstore.Tx) { tx.PatchItem("account", poor, nil) },
	} {
		runs = 0
		_, err := once.DoTx(t.Context(), s, pay.For("2"), func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
			runs++
			tx.CreateItem(effect("row"))
			write(tx)
			return "paid", nil
		})
		var refused *cosmosstore.WriteError
		if !errors.As(err, &refused) || refused.StatusCode != want || refused.Index != 1 || runs != 1 {
			t.Errorf("after %d runs DoTx returned %v, want status %d", runs, err, want)
		}
	}
	if n, err := a.effects("row"); err != nil || n != 0 {
		t.Errorf("there are %d effects, %v", n, err)
	}
	if rec, err := s.Get(t.Context(), pay.For("2").Key()); err != nil || rec.Status != once.Absent {
		t.Errorf("the key is %v, %v", rec.Status, err)
	}
}

// stored returns the item of a key as it is in the container, or nil.
func (a *account) stored(k once.Key) map[string]any {
	a.t.Helper()
	got, err := a.container("keys").ReadItem(a.t.Context(), azcosmos.NewPartitionKeyString("c1"),
		fmt.Sprintf("once-%x", k.UUID()), nil)
	if code(err) == 404 {
		return nil
	}
	must(a.t, err)
	var is map[string]any
	must(a.t, json.Unmarshal(got.Value, &is))
	return is
}

// Records stay until the end of their KeepKey, and open ones for ever, whatever
// the fraction of the second in which they are written.
func TestTheServiceDeletesRecordsInTime(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	var set time.Time // zero: the clock runs
	a.SetClock(func() time.Time {
		if set.IsZero() {
			return time.Now()
		}
		return set
	})
	// Once a second has begun between two responses, the time is known well.
	for begin := time.Now(); time.Since(begin) < 1200*time.Millisecond; {
		_, err := s.Get(t.Context(), pay.For("1").Key())
		must(t, err)
	}
	const keep = time.Hour + 900*time.Millisecond
	for part := range 4 {
		for time.Now().Nanosecond()/250e6 != part {
			time.Sleep(10 * time.Millisecond)
		}
		begin := time.Now()
		keys := map[once.Status]once.Key{}
		for is := once.Absent; is <= once.Done; is++ {
			keys[is] = pay.For(fmt.Sprint(part, is)).Key()
			fence := claim(t, s, keys[is], time.Minute)
			if is != once.Running {
				settle(t, s, fence, is, time.Minute, keep)
			}
		}
		for _, step := range []struct {
			after time.Duration
			kept  bool
		}{{keep, true}, {keep + 5*time.Second, false}, {30 * 365 * 24 * time.Hour, false}} {
			set = begin.Add(step.after)
			for is, key := range keys {
				open := is != once.Absent && is != once.Done
				if kept := a.stored(key) != nil; kept != (step.kept || open) {
					t.Errorf("%v after a write at %v, an item that is %v is kept: %v", step.after, begin, is, kept)
				}
			}
		}
		set = time.Time{}
	}
}

// What time means is told by the service, although it disagrees with this
// machine.
func TestTheClockOfThisMachineDecidesNothing(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		a := newAccount(t)
		a.SetClock(func() time.Time { return time.Now().Add(ahead) })
		s, rival := a.store(), a.store()
		key := pay.For("1").Key()
		claim(t, s, key, time.Minute)
		rec, err := rival.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{2}, Attempt: 1}, Lease: time.Minute})
		if err != nil || rec.Status != once.Running || rec.Owner != [16]byte{1} || rec.LeaseLeft < time.Minute-5*time.Second || rec.LeaseLeft > time.Minute+3*time.Second {
			t.Errorf("%v ahead: the rival got %v of %x with %v left, %v", ahead, rec.Status, rec.Owner[:1], rec.LeaseLeft, err)
		}
		if off := rec.Created.Sub(time.Now().Add(ahead)).Abs(); off > 10*time.Second {
			t.Errorf("%v ahead: the record was created %v off", ahead, off)
		}
		claim(t, s, pay.For("2").Key(), 10*time.Millisecond)
		deadline := time.Now().Add(time.Minute)
		for {
			rec, err := rival.Get(t.Context(), pay.For("2").Key())
			must(t, err)
			if rec.Status == once.Unknown {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v ahead: a lease of 10 ms has not lapsed: %v left", ahead, rec.LeaseLeft)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

func TestForgetRemovesOutcomes(t *testing.T) {
	a := newAccount(t)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	a.SetClock(func() time.Time { return now })
	s := a.store()
	for i := range 5 {
		settle(t, s, claim(t, s, pay.For(fmt.Sprint(i)).Key(), time.Minute), once.Done, time.Hour, 3*time.Hour)
	}
	now = now.Add(2 * time.Hour)
	later := a.store()
	for _, want := range []int{3, 2, 0} {
		if n, err := later.Forget(t.Context(), 3); err != nil || n != want {
			t.Fatalf("Forget returned %d, %v, want %d", n, err, want)
		}
	}
	for i := range 5 {
		key := pay.For(fmt.Sprint(i)).Key()
		if is := a.stored(key); is["onceBody"] != nil || is["ttl"] == -1.0 {
			t.Errorf("after Forget, the item is %v", is)
		}
		if rec, err := later.Get(t.Context(), key); err != nil || rec.Status != once.Expired {
			t.Errorf("after Forget, the record is %v, %v", rec.Status, err)
		}
	}
	now = now.Add(61 * time.Minute)
	if is := a.stored(pay.For("1").Key()); is != nil {
		t.Errorf("after KeepKey, there is %v", is)
	}
}

// Processes know the time as well as they have learned it, so that an outcome may
// be removed before it has expired for all of them.
func TestAnOutcomeThatIsRemovedHasExpiredForAll(t *testing.T) {
	a := newAccount(t)
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	a.SetClock(func() time.Time { return now })
	behind, work := a.store(), pay.For("1")
	_, err := once.Do(t.Context(), behind, work, func(context.Context, once.Key) (string, error) { return "paid", nil })
	must(t, err)
	now = now.Add(8 * 24 * time.Hour)
	if n, err := a.store().Forget(t.Context(), 1); err != nil || n != 1 {
		t.Fatalf("Forget returned %d, %v", n, err)
	}
	if rec, err := behind.Get(t.Context(), work.Key()); err != nil || rec.Status != once.Expired {
		t.Errorf("the process that is behind gets %v, %v", rec.Status, err)
	}
	now = now.Add(-8 * 24 * time.Hour)
	got, err := once.Do(t.Context(), a.store(), work, func(context.Context, once.Key) (string, error) { return "paid twice", nil })
	if !errors.Is(err, once.ErrExpired) {
		t.Errorf("a repeat in a process that is behind returned %q, %v", got, err)
	}
}

// A hand that edits items may damage them.
func TestADamagedItemIsCorrupt(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	damage := map[string]func(item, of map[string]any){
		"no record":       func(item, _ map[string]any) { delete(item, "once") },
		"another key":     func(_, of map[string]any) { of["key"] = "other" },
		"a status":        func(_, of map[string]any) { of["status"] = "paid" },
		"expired":         func(_, of map[string]any) { of["status"] = "expired" },
		"no attempt":      func(_, of map[string]any) { of["attempt"] = 0 },
		"a text attempt":  func(_, of map[string]any) { of["attempt"] = "1" },
		"a short owner":   func(_, of map[string]any) { of["owner"] = "00" },
		"a time":          func(_, of map[string]any) { of["lease"] = "tomorrow" },
		"the fingerprint": func(_, of map[string]any) { of["fingerprint"] = "x" },
	}
	for name, change := range damage {
		key := pay.For(name).Key()
		fence := claim(t, s, key, time.Hour)
		is := a.stored(key)
		of, _ := is["once"].(map[string]any)
		change(is, of)
		text, err := json.Marshal(is)
		must(t, err)
		_, err = a.container("keys").UpsertItem(t.Context(), azcosmos.NewPartitionKeyString("c1"), text, nil)
		must(t, err)
		if _, err := s.Get(t.Context(), key); !errors.Is(err, once.ErrCorrupt) {
			t.Errorf("%s: Get returned %v", name, err)
		}
		if err := s.Extend(t.Context(), fence, time.Hour); !errors.Is(err, once.ErrCorrupt) {
			t.Errorf("%s: Extend returned %v", name, err)
		}
	}
}

// One damaged item must not keep the reconciler and Forget from all the others.
func TestListAndForgetLeaveOutDamagedItems(t *testing.T) {
	a := newAccount(t)
	var now atomic.Int64
	now.Store(time.Now().Unix())
	a.SetClock(func() time.Time { return time.Unix(now.Load(), 0) })
	s := a.store()
	damage := func(key once.Key, change func(item, of map[string]any)) {
		is := a.stored(key)
		of, _ := is["once"].(map[string]any)
		change(is, of)
		text, err := json.Marshal(is)
		must(t, err)
		_, err = a.container("keys").UpsertItem(t.Context(), azcosmos.NewPartitionKeyString("c1"), text, nil)
		must(t, err)
	}
	noAttempt := func(_, of map[string]any) { of["attempt"] = 0 }
	for _, id := range []string{"open", "damaged open"} {
		claim(t, s, pay.For(id).Key(), time.Hour)
	}
	damage(pay.For("damaged open").Key(), noAttempt)
	for _, id := range []string{"done", "damaged", "damaged body"} {
		settle(t, s, claim(t, s, pay.For(id).Key(), time.Hour), once.Done, time.Minute, 24*time.Hour)
	}
	damage(pay.For("damaged").Key(), noAttempt)
	damage(pay.For("damaged body").Key(), func(item, _ map[string]any) { item["onceBody"] = 7 })
	for range 2 {
		var found []string
		page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running}})
		must(t, err)
		for _, rec := range page.Records {
			found = append(found, rec.Key.ID)
		}
		if len(found) != 1 || found[0] != "open" || len(page.Damaged) != 1 {
			t.Errorf("List returned %q, and %v", found, page.Damaged)
		}
	}
	page, err := s.List(t.Context(), once.RecordQuery{UUID: pay.For("damaged open").Key().UUID()})
	if err != nil || len(page.Records) > 0 || len(page.Damaged) != 1 {
		t.Errorf("List of the damaged record returned %v, %v, %v", page.Records, page.Damaged, err)
	}
	now.Add(600)
	if n, err := s.Forget(t.Context(), 1); err != nil || n > 1 {
		t.Errorf("Forget returned %d, %v", n, err)
	}
	n, err := s.Forget(t.Context(), 100)
	must(t, err)
	if _, has := a.stored(pay.For("done").Key())["onceBody"]; has {
		t.Errorf("Forget has left the outcome of the whole record, and returned %d", n)
	}
}

func TestAnOutcomeOverTheLimitIsRefused(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	for i, size := range []int{2 << 20, 3 << 20} {
		fence := claim(t, s, pay.For(fmt.Sprint(i)).Key(), time.Hour)
		set := once.Settlement{Fence: fence, Status: once.Done, KeepOutcome: time.Hour, KeepKey: time.Hour}
		set.Outcome.Body = []byte(strings.Repeat("x", size))
		if err := s.Settle(t.Context(), set); !errors.Is(err, once.ErrOutcomeRefused) {
			t.Errorf("Settle with %d bytes returned %v", size, err)
		}
	}
}

// A list asks for narrower ranges if it meets many records, and for wider ones
// again.
func TestListsOfManyRecordsHaveBoundedPages(t *testing.T) {
	a := newAccount(t)
	s := cosmosstore.New(a.container("keys"), nil)
	const n, open = 2500, 25
	want := map[string]bool{}
	for i := range n {
		id := fmt.Sprint(i)
		want[id] = true
		fence := claim(t, s, once.Key{Operation: "pay", ID: id}, time.Hour)
		if i >= open {
			settle(t, s, fence, once.Done, time.Hour, time.Hour)
		}
	}
	list := func(q once.RecordQuery) (found map[string]bool, pages int) {
		found = map[string]bool{}
		for {
			page, err := s.List(t.Context(), q)
			must(t, err)
			if pages++; len(page.Records) > max(q.Limit, 100) {
				t.Fatalf("a page has %d records", len(page.Records))
			}
			for _, rec := range page.Records {
				if found[rec.Key.ID] {
					t.Errorf("%q is listed twice", rec.Key.ID)
				}
				found[rec.Key.ID] = true
			}
			if page.Next == (once.Key{}) {
				return found, pages
			}
			q.After = page.Next
		}
	}
	if found, pages := list(once.RecordQuery{Limit: 1000}); len(found) != n || pages > 40 {
		t.Errorf("%d of %d records are listed in %d pages", len(found), n, pages)
	}
	if found, pages := list(once.RecordQuery{Status: []once.Status{once.Running, once.Unknown}}); len(found) != open || pages > 10 {
		t.Errorf("%d of %d open records are listed in %d pages", len(found), open, pages)
	}
}

// Each request in turn is lost, or its reply is, or it is applied late. What the
// callers learn is what took place, once.
func TestLostRequestsAndReplies(t *testing.T) {
	const most = 8 // requests of one call
	for _, fault := range []fakecosmos.Fault{fakecosmos.LoseRequest, fakecosmos.LoseReply, fakecosmos.Delay, fakecosmos.Unavailable, fakecosmos.Refused} {
		for n := range most {
			for name, options := range map[string]*cosmosstore.Options{"": {Partition: one}, " claiming first": {Partition: one, ClaimFirst: true}} {
				t.Run(fmt.Sprintf("fault %d of request %d%s", fault, n, name), func(t *testing.T) {
					t.Parallel()
					a := newAccount(t)
					s := cosmosstore.New(a.container("keys"), options)
					_, err := s.Get(t.Context(), pay.For("0").Key())
					must(t, err)
					lose := func() {
						first := a.Requests() + 1
						a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
							if r.N == first+n {
								return fault
							}
							return fakecosmos.None
						})
					}
					lose()
					runs, works := 0, 0
					got, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
						runs++
						tx.CreateItem(effect("row"))
						return fmt.Sprint("run ", runs), nil
					})
					if err != nil {
						t.Errorf("DoTx returned %v", err)
					}
					a.DeliverLate()
					a.SetFault(nil)
					again, err := once.DoTx(t.Context(), a.store(), pay.For("1"), func(context.Context, *cosmosstore.Tx) (string, error) {
						return "another run", nil
					})
					if rows, e := a.effects("row"); e != nil || rows != 1 || err != nil || again != got {
						t.Errorf("there are %d rows, and DoTx returned %q, then %q, %v, %v", rows, got, again, err, e)
					}
					lose()
					work := func(context.Context, once.Key) (string, error) {
						works++
						return fmt.Sprint("work ", works), nil
					}
					if got, err = once.Do(t.Context(), s, pay.For("2"), work); err != nil {
						t.Errorf("Do returned %v", err)
					}
					a.DeliverLate()
					if again, err = once.Do(t.Context(), a.store(), pay.For("2"), work); err != nil || again != got || works != 1 {
						t.Errorf("after %d calls of the work, Do returned %q, then %q, %v", works, got, again, err)
					}
				})
			}
		}
	}
}

// A commit that is still on its way is refused once the same caller has claimed
// the key, also if its own work then fails.
func TestALateCommitIsRefused(t *testing.T) {
	for i := range 4 {
		a := newAccount(t)
		s := a.store()
		fails, known := i&1 > 0, i&2 > 0
		if known { // so that the commit replaces an item
			settle(t, s, claim(t, s, pay.For("1").Key(), time.Hour), once.Absent, 0, time.Hour)
		}
		commits := 0
		a.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
			if r.Kind == "Batch" && strings.Contains(string(r.Body), `"name":"row"`) {
				if commits++; commits == 1 {
					return fakecosmos.Delay
				}
			}
			return fakecosmos.None
		})
		no, runs := errors.New("out of stock"), 0
		var late []int
		_, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
			tx.CreateItem(effect("row"))
			if runs++; runs == 2 {
				late = a.DeliverLate()
				if fails {
					return "", no
				}
			}
			return "paid", nil
		})
		want := 1
		if fails {
			want = 0
		}
		if rows, e := a.effects("row"); e != nil || rows != want || errors.Is(err, no) != fails || fmt.Sprint(late) != "[207]" {
			t.Errorf("the late commit got %v, there are %d rows, and DoTx returned %v, %v", late, rows, err, e)
		}
	}
}

// A transaction of the caller belongs to him, and one of Transact does not.
func TestWhoEndsATransaction(t *testing.T) {
	a := newAccount(t)
	s := a.store()
	_, err := once.DoTx(t.Context(), s, pay.For("1"), func(ctx context.Context, tx *cosmosstore.Tx) (string, error) {
		return "", errors.Join(tx.Commit(ctx), tx.Rollback())
	})
	if !errors.Is(err, once.ErrInvalid) {
		t.Errorf("in DoTx, Commit and Rollback returned %v", err)
	}
	tx := s.Begin()
	tag := azcore.ETag("x")
	tx.DeleteItem("nobody", &azcosmos.TransactionalBatchItemOptions{IfMatchETag: &tag})
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrInvalid) { // nothing tells the partition key
		t.Errorf("a transaction without a partition key returned %v", err)
	}
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("a second commit returned %v", err)
	}
	if err := s.Begin().Commit(t.Context()); err != nil {
		t.Errorf("an empty transaction returned %v", err)
	}
}

// azcosmos writes some characters into a header in a way that the service cannot
// read, and an encoder replaces bytes that are not UTF-8 in the item alone.
func TestOddPartitionKeys(t *testing.T) {
	a := newAccount(t)
	for partition, fits := range map[string]bool{
		"": true, "c1": true, `a"b\c/d#e?f`: true, "Müller & Söhne 日本": true, "\ufffd": true, strings.Repeat("x", 2048): true,
		"M\xc3": false, "a\x00b": false, "a\tb": false, "a\x7fb": false, "paid 😀": false, strings.Repeat("x", 2049): false,
	} {
		s := cosmosstore.New(a.container("keys"), &cosmosstore.Options{Partition: func(once.Key) string { return partition }})
		pay := &once.Operation[string]{Name: "pay"}
		got, err := once.DoTx(t.Context(), s, pay.For("1"), func(context.Context, *cosmosstore.Tx) (string, error) { return "paid", nil })
		switch {
		case fits && (err != nil || got != "paid"), !fits && !errors.Is(err, once.ErrInvalid):
			t.Errorf("in the partition %.20q, DoTx returned %q, %v", partition, got, err)
		case fits:
			if rec, err := s.Get(t.Context(), pay.For("1").Key()); err != nil || rec.Status != once.Done {
				t.Errorf("in the partition %.20q, Get returned %v, %v", partition, rec.Status, err)
			}
		}
	}
}

// Containers of the same name, in two accounts, are two containers.
func TestATransactionOfAnotherAccount(t *testing.T) {
	here, there := newAccount(t), newAccount(t)
	tx := there.store().Begin()
	pay := &once.Operation[string]{Name: "pay"}
	_, err := once.InTx(t.Context(), here.store(), tx, pay.For("1"), func(context.Context) (string, error) { return "paid", nil })
	if !errors.Is(err, once.ErrInvalid) {
		t.Errorf("InTx returned %v", err)
	}
}
