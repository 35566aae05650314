package dynamostore_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store/dynamostore"
)

// itemOf returns the item of a key.
func (w *world) itemOf(t testing.TB, table string, key map[string]types.AttributeValue) map[string]types.AttributeValue {
	t.Helper()
	out, err := w.client.GetItem(context.Background(), &dynamodb.GetItemInput{TableName: &table, Key: key, ConsistentRead: aws.Bool(true)})
	must(t, err)
	return out.Item
}

func pk(k once.Key) map[string]types.AttributeValue {
	id := k.UUID()
	return map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: fmt.Sprintf("once#%x", id)}}
}

func text(it map[string]types.AttributeValue, name string) string {
	v, _ := it[name].(*types.AttributeValueMemberS)
	if v == nil {
		return ""
	}
	return v.Value
}

func seconds(it map[string]types.AttributeValue, name string) (n int64) {
	if v, ok := it[name].(*types.AttributeValueMemberN); ok {
		n, _ = strconv.ParseInt(v.Value, 10, 64)
	}
	return n
}

// The guide shows this item.
func TestAnItemCanBeRead(t *testing.T) {
	w := newWorld(t)
	work := pay.For("order 7").In("tenant")
	_, err := once.Do(t.Context(), w.store, work, func(context.Context, once.Key) (string, error) {
		it := w.itemOf(t, "once", pk(work.Key()))
		if text(it, "status") != "running" || text(it, "once_open") == "" || it["expires"] != nil {
			t.Errorf("while it runs, the item is %v", it)
		}
		return "paid", nil
	})
	must(t, err)
	it := w.itemOf(t, "once", pk(work.Key()))
	for name, want := range map[string]string{"key_scope": "tenant", "key_operation": "pay", "key_id": "order 7", "status": "done", "once_open": ""} {
		if got := text(it, name); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	keep, err := time.Parse(time.RFC3339, text(it, "keep_key"))
	if expires := seconds(it, "expires"); err != nil || time.Unix(expires, 0).Before(keep) || time.Unix(expires-1, 0).After(keep) {
		t.Errorf("keep_key is %q, %v, and expires %d", text(it, "keep_key"), err, expires)
	}
	if out, ok := it["outcome"].(*types.AttributeValueMemberB); !ok || string(out.Value) != `"paid"` {
		t.Errorf("outcome is %v", it["outcome"])
	}
}

func TestDamagedItems(t *testing.T) {
	for name, damage := range map[string]func(it map[string]map[string]any){
		"the parts of another key": func(it map[string]map[string]any) { it["key_id"] = map[string]any{"S": "2"} },
		"no version":               func(it map[string]map[string]any) { delete(it, "version") },
		"no sum":                   func(it map[string]map[string]any) { delete(it, "sum") },
		"a large sum":              func(it map[string]map[string]any) { it["sum"] = map[string]any{"N": "4294967296"} },
		"another outcome": func(it map[string]map[string]any) {
			it["outcome"] = map[string]any{"B": base64.StdEncoding.EncodeToString([]byte("x"))}
		},
		"no outcome":           func(it map[string]map[string]any) { delete(it, "outcome") },
		"no keep_key":          func(it map[string]map[string]any) { delete(it, "keep_key") },
		"no keep_outcome":      func(it map[string]map[string]any) { delete(it, "keep_outcome") },
		"no lease":             func(it map[string]map[string]any) { delete(it, "lease") },
		"no time":              func(it map[string]map[string]any) { it["keep_key"] = map[string]any{"S": "soon"} },
		"no attempt":           func(it map[string]map[string]any) { delete(it, "attempt") },
		"half an attempt":      func(it map[string]map[string]any) { it["attempt"] = map[string]any{"N": "1.5"} },
		"a short owner":        func(it map[string]map[string]any) { it["owner"] = map[string]any{"B": "AAAA"} },
		"another status":       func(it map[string]map[string]any) { it["status"] = map[string]any{"S": "finished"} },
		"a status as a number": func(it map[string]map[string]any) { it["status"] = map[string]any{"N": "4"} },
		"a flag as a text":     func(it map[string]map[string]any) { it["rejected"] = map[string]any{"S": "no"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			answer := func(context.Context, once.Key) (string, error) { return "paid", nil }
			_, err := once.Do(t.Context(), w.store, pay.For("1"), answer)
			must(t, err)
			w.Edit("once", damage)
			again := func(context.Context, once.Key) (string, error) { return "paid twice", nil }
			if got, err := once.Do(t.Context(), w.store, pay.For("1"), again); !errors.Is(err, once.ErrCorrupt) || got != "" {
				t.Errorf("Do returned %q, %v", got, err)
			}
			inTx := func(_ context.Context, tx *dynamostore.Tx) (string, error) { return "paid twice", w.effect(tx, "row") }
			if got, err := once.DoTx(t.Context(), w.store, pay.For("1"), inTx); !errors.Is(err, once.ErrCorrupt) || got != "" {
				t.Errorf("DoTx returned %q, %v", got, err)
			}
		})
	}
}

// movable is a clock of the service that a test moves.
type movable struct{ ahead atomic.Int64 }

func (m *movable) now() time.Time { return time.Now().Add(time.Duration(m.ahead.Load())) }

func (m *movable) move(d time.Duration) { m.ahead.Add(int64(d)) }

func newWorldAt(t testing.TB, fake *dynamofake.Server) *world {
	w := &world{Server: fake, url: serve(t, fake)}
	w.store = dynamostore.New(dial(w.url), nil)
	must(t, w.store.CreateTable(context.Background()))
	w.shop = openShop(t, dial(w.url), "shop")
	return w
}

// DynamoDB deletes what is past its time, and never what is not done. Reads do
// not depend on it.
func TestExpiry(t *testing.T) {
	clock := new(movable)
	w := newWorldAt(t, &dynamofake.Server{Clock: clock.now})
	claim := func(id string, attempt int64) once.Fence {
		fence := once.Fence{Key: once.Key{Operation: "pay", ID: id}, Owner: [16]byte{byte(attempt)}}
		rec, err := w.store.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Second})
		must(t, err)
		fence.Attempt = rec.Attempt
		return fence
	}
	keep := once.Settlement{KeepOutcome: time.Hour, KeepKey: time.Hour}
	for _, status := range []once.Status{once.Running, once.Unknown, once.Parked, once.Absent, once.Done} {
		for attempt := range int64(2) { // the second time after a release, which expires
			set := keep
			set.Fence = claim(status.String(), attempt+1)
			if set.Status = status; attempt == 0 {
				set.Status = once.Absent
			}
			if set.Status != once.Running {
				must(t, w.store.Settle(t.Context(), set))
			}
		}
	}
	if n := w.Expire(); n != 0 {
		t.Errorf("%d items were deleted early", n)
	}
	clock.move(2 * time.Hour)
	statusOf := func(id string) once.Status {
		rec, err := w.store.Get(t.Context(), once.Key{Operation: "pay", ID: id})
		must(t, err)
		return rec.Status
	}
	statusOf("done") // its response tells the time
	for range 2 {
		for id, want := range map[string]once.Status{"running": once.Unknown, "unknown": once.Unknown, "parked": once.Parked,
			"absent": once.Absent, "done": once.Absent} {
			if got := statusOf(id); got != want {
				t.Errorf("%s has become %v", id, got)
			}
		}
		if n := w.Expire(); n != 0 && n != 2 {
			t.Errorf("%d items were deleted", n)
		}
	}
	if it := w.itemOf(t, "once", pk(once.Key{Operation: "pay", ID: "done"})); it != nil {
		t.Errorf("there is still %v", it)
	}
}

// The clock of this machine may be an hour ahead of the service's, or behind. A
// lease holds for rivals as long as it was asked for, by the service's clock, and
// ends soon after.
func TestLeasesHoldWhateverTheLocalClockShows(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			clock := new(movable)
			clock.move(ahead)
			clock.move(900*time.Millisecond - time.Duration(clock.now().Nanosecond())) // the Date is almost a second late
			w := newWorldAt(t, &dynamofake.Server{Clock: clock.now})
			const lease = 1500 * time.Millisecond
			rival := dynamostore.New(dial(w.url), nil)
			fence := once.Fence{Key: once.Key{Operation: "pay", ID: "1"}, Owner: [16]byte{1}}
			begin := clock.now()
			_, err := w.store.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: lease})
			must(t, err)
			for {
				rec, err := rival.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: fence.Key, Owner: [16]byte{2}, Attempt: 1},
					Lease: time.Hour})
				must(t, err)
				passed := clock.now().Sub(begin)
				if rec.Owner == [16]byte{2} {
					if passed < lease {
						t.Errorf("a rival took the key after %v of %v", passed, lease)
					}
					break
				}
				if passed > lease+4*time.Second {
					t.Fatalf("a rival has not got the key after %v: %v", passed, rec)
				}
			}
			if rec, err := w.store.Get(t.Context(), fence.Key); err != nil || rec.Created.Sub(begin) > 2*time.Second || begin.Sub(rec.Created) > 2*time.Second {
				t.Errorf("created at %v by the service's clock, which was %v, %v", rec.Created, begin, err)
			}
		})
	}
}

// The index lags. Get, Claim and the list of one key do not use it.
func TestOnlyListReadsTheIndex(t *testing.T) {
	w := newWorldAt(t, &dynamofake.Server{Lag: time.Hour})
	fence := once.Fence{Key: once.Key{Operation: "pay", ID: "1"}, Owner: [16]byte{1}}
	_, err := w.store.Claim(t.Context(), once.ClaimRequest{Fence: fence, Lease: time.Hour})
	must(t, err)
	running := []once.Status{once.Running}
	if page, err := w.store.List(t.Context(), once.RecordQuery{Status: running}); err != nil || len(page.Records) != 0 {
		t.Errorf("List returned %v, %v from an index that is an hour behind", page.Records, err)
	}
	if page, err := w.store.List(t.Context(), once.RecordQuery{UUID: fence.Key.UUID()}); err != nil || len(page.Records) != 1 {
		t.Errorf("List of one key returned %v, %v", page.Records, err)
	}
	if rec, err := w.store.Get(t.Context(), fence.Key); err != nil || rec.Status != once.Running {
		t.Errorf("Get returned %v, %v", rec, err)
	}
}

// Records can be among the items of the caller, in a table with a sort key.
func TestATableOfTheCaller(t *testing.T) {
	w := newWorld(t)
	o := &dynamostore.Options{Table: "shop2", PartitionKey: "id", SortKey: "part", Prefix: "key ", Index: "unfinished", Expiry: "until"}
	s := dynamostore.New(dial(w.url), o)
	must(t, s.CreateTable(t.Context()))
	other := *o
	other.Prefix = "key 2 "
	for _, s := range []*dynamostore.Store{s, dynamostore.New(dial(w.url), &other)} {
		got, err := once.Do(t.Context(), s, pay.For("1"), func(ctx context.Context, _ once.Key) (string, error) {
			page, err := s.List(ctx, once.RecordQuery{Status: []once.Status{once.Running}})
			if err != nil || len(page.Records) != 1 {
				t.Errorf("List returned %v, %v", page.Records, err)
			}
			return "paid", nil
		})
		if err != nil || got != "paid" {
			t.Errorf("Do returned %q, %v", got, err)
		}
	}
	id := pay.For("1").Key().UUID()
	it := w.itemOf(t, "shop2", map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: fmt.Sprintf("key %x", id)},
		"part": &types.AttributeValueMemberS{Value: "once"}})
	if text(it, "status") != "done" || seconds(it, "until") == 0 {
		t.Errorf("the item is %v", it)
	}
}

func TestInvalidStores(t *testing.T) {
	w := newWorld(t)
	for name, s := range map[string]*dynamostore.Store{
		"no client":               dynamostore.New(nil, nil),
		"a key like an attribute": dynamostore.New(dial(w.url), &dynamostore.Options{PartitionKey: "status"}),
		"one name twice":          dynamostore.New(dial(w.url), &dynamostore.Options{PartitionKey: "id", SortKey: "id"}),
	} {
		for call, err := range map[string]error{
			"Get":         func() error { _, err := s.Get(t.Context(), once.Key{Operation: "pay", ID: "1"}); return err }(),
			"Claim":       func() error { _, err := s.Claim(t.Context(), once.ClaimRequest{}); return err }(),
			"List":        func() error { _, err := s.List(t.Context(), once.RecordQuery{UUID: [16]byte{1}}); return err }(),
			"Forget":      func() error { _, err := s.Forget(t.Context(), 1); return err }(),
			"CreateTable": s.CreateTable(t.Context()),
		} {
			if !errors.Is(err, once.ErrInvalid) {
				t.Errorf("%s: %s returned %v", name, call, err)
			}
		}
	}
}
