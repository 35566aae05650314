package tablestore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/tablestore"
)

func fence(id string) once.Fence {
	return once.Fence{Key: once.Key{Scope: "shop", Operation: "pay", ID: id}, Owner: [16]byte{1}, Attempt: 1}
}

func claim(t testing.TB, s once.Store, id string) once.Fence {
	t.Helper()
	f := fence(id)
	_, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: f.Key, Owner: f.Owner}, Lease: time.Hour, Fingerprint: []byte("print")})
	must(t, err)
	return f
}

func done(f once.Fence, body []byte) once.Settlement {
	return once.Settlement{Fence: f, Status: once.Done, Outcome: once.Outcome{Body: body, ContentType: "text/plain", Sum: 1 << 31},
		KeepOutcome: time.Hour, KeepKey: 2 * time.Hour, Reason: "paid"}
}

// rowOf returns the keys of the entity of a key in the default partitions.
func rowOf(k once.Key) (partition, row string) {
	id := fmt.Sprintf("%x", k.UUID())
	return id[:2], "once-key-" + id
}

func read(t testing.TB, c *aztables.Client, partition, row string) aztables.EDMEntity {
	t.Helper()
	resp, err := c.GetEntity(t.Context(), partition, row, nil)
	must(t, err)
	var e aztables.EDMEntity
	must(t, json.Unmarshal(resp.Value, &e))
	return e
}

func write(t testing.TB, c *aztables.Client, e aztables.EDMEntity) {
	t.Helper()
	text, err := json.Marshal(e)
	must(t, err)
	_, err = c.UpsertEntity(t.Context(), text, &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeReplace})
	must(t, err)
}

func entities(t testing.TB, c *aztables.Client, filter string) (found []aztables.EDMEntity) {
	t.Helper()
	for pages := c.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &filter}); pages.More(); {
		page, err := pages.NextPage(t.Context())
		must(t, err)
		for _, text := range page.Entities {
			var e aztables.EDMEntity
			must(t, json.Unmarshal(text, &e))
			found = append(found, e)
		}
	}
	return found
}

func TestAPersonCanReadTheTable(t *testing.T) {
	c := table(t)
	s := tablestore.New(c, nil)
	f := claim(t, s, "1")
	must(t, s.Settle(t.Context(), done(f, bytes.Repeat([]byte("x"), 64<<10+1))))
	e := read(t, c, onlyPartition(f.Key), onlyRow(f.Key))
	for name, want := range map[string]any{
		"Scope": "shop", "Operation": "pay", "ID": "1", "Status": "done", "Open": false, "Reason": "paid", "ContentType": "text/plain",
		"Owner": "01000000000000000000000000000000", "Attempt": aztables.EDMInt64(1), "Rejected": false, "Omitted": false,
		"Sum": aztables.EDMInt64(1 << 31),
	} {
		if e.Properties[name] != want {
			t.Errorf("%s is %v, want %v", name, e.Properties[name], want)
		}
	}
	if len(e.Properties["Body00"].(aztables.EDMBinary)) != 64<<10 || string(e.Properties["Body01"].(aztables.EDMBinary)) != "x" ||
		string(e.Properties["Fingerprint"].(aztables.EDMBinary)) != "print" {
		t.Error("the body or the fingerprint is not in its properties")
	}
	for name, later := range map[string]time.Duration{"Created": 0, "Updated": 0, "Lease": time.Hour, "KeepOutcome": time.Hour, "KeepKey": 2 * time.Hour, "Due": time.Hour} {
		at, ok := e.Properties[name].(aztables.EDMDateTime)
		if off := time.Until(time.Time(at)) - later; !ok || off < -5*time.Second || off > 5*time.Second {
			t.Errorf("%s is %v", name, e.Properties[name])
		}
	}
}

func onlyPartition(k once.Key) string { p, _ := rowOf(k); return p }
func onlyRow(k once.Key) string       { _, r := rowOf(k); return r }

func TestADamagedEntityIsCorrupt(t *testing.T) {
	c := table(t)
	s := tablestore.New(c, nil)
	for name, value := range map[string]any{
		"Status": "paid", "Attempt": "1", "Owner": "x", "Operation": nil, "ID": "2", "Lease": "soon", "Cause": strings.Repeat("ab", 17), "Sum": nil, "Body00": "text",
		"Fingerprint": 1, "Rejected": "yes",
	} {
		f := claim(t, s, name)
		must(t, s.Settle(t.Context(), done(f, []byte("answer"))))
		e := read(t, c, onlyPartition(f.Key), onlyRow(f.Key))
		if e.Properties[name] = value; value == nil {
			delete(e.Properties, name)
		}
		e.Properties["Due"] = aztables.EDMDateTime(time.Now().Add(-time.Hour))
		write(t, c, e)
		if rec, err := s.Get(t.Context(), f.Key); !errors.Is(err, once.ErrCorrupt) {
			t.Errorf("with %s %v, Get returned %v, %v", name, value, rec, err)
		}
		if rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: f.Key, Owner: [16]byte{2}}, Lease: time.Hour}); !errors.Is(err, once.ErrCorrupt) {
			t.Errorf("with %s %v, Claim returned %v, %v", name, value, rec, err)
		}
	}
	if n, err := s.Forget(t.Context(), 100); n != 0 || err != nil {
		t.Errorf("Forget has forgotten %d damaged keys: %v", n, err)
	}
}

// Forget reads the whole table, and changes only keys that are due.
func TestForgetLeavesTheRestAlone(t *testing.T) {
	c := table(t)
	for _, partition := range []func(once.Key) string{nil, func(k once.Key) string { return "customer " + k.ID[:1] }} {
		s := tablestore.New(c, &tablestore.Options{Partition: partition})
		past := aztables.EDMDateTime(time.Now().Add(-time.Hour))
		write(t, c, aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: "00", RowKey: "mine"}, Properties: map[string]any{"Due": past}})
		kept := claim(t, s, "kept")
		const due = 230
		soon := done(once.Fence{}, []byte("answer"))
		soon.KeepOutcome, soon.KeepKey = time.Millisecond, time.Millisecond
		for i := range due {
			soon.Fence = claim(t, s, fmt.Sprint(i))
			must(t, s.Settle(t.Context(), soon))
		}
		long := soon
		long.KeepKey, long.Fence = time.Hour, claim(t, s, "expired")
		must(t, s.Settle(t.Context(), long))
		testenv.Await(t, "the last key is past its time", func() bool {
			rec, err := s.Get(t.Context(), soon.Key)
			must(t, err)
			return rec.Attempt == 0
		})
		total := 0
		forget := func() int {
			n, err := s.Forget(t.Context(), 100)
			must(t, err)
			total += n
			return n
		}
		testenv.Await(t, "all keys are forgotten", func() bool { return forget() < 100 && total > due })
		if forget(); total != due+1 {
			t.Errorf("%d keys were forgotten, want %d", total, due+1)
		}
		for id, status := range map[string]once.Status{"kept": once.Running, "expired": once.Expired, "0": once.Absent} {
			if rec, err := s.Get(t.Context(), fence(id).Key); err != nil || rec.Status != status {
				t.Errorf("%s is %v, %v", id, rec.Status, err)
			}
		}
		for _, e := range entities(t, c, "ContentType eq 'text/plain' or Body00 ne X''") {
			t.Errorf("an outcome is left: %v", e)
		}
		must(t, s.Settle(t.Context(), once.Settlement{Fence: kept, Status: once.Absent, KeepKey: time.Hour}))
		if left := entities(t, c, "RowKey eq 'mine'"); len(left) != 1 {
			t.Error("an entity of the user is gone")
		}
		if partition == nil {
			if left := entities(t, c, "RowKey ge 'once-open-' and RowKey lt 'once-open.'"); len(left) != 0 {
				t.Errorf("%d index entities are left", len(left))
			}
		}
	}
}

// The key is claimed after Forget has found it, and before it is deleted.
func TestForgetSparesAKeyThatIsClaimedMeanwhile(t *testing.T) {
	l := &line{}
	c := table(t, l)
	s := tablestore.New(c, nil)
	soon := done(once.Fence{}, nil)
	soon.KeepOutcome, soon.KeepKey = time.Millisecond, time.Millisecond
	var keys []once.Key
	for i := range 3 {
		soon.Fence = claim(t, s, inPartition(0x2a, i))
		must(t, s.Settle(t.Context(), soon))
		keys = append(keys, soon.Key)
	}
	testenv.Await(t, "the last key is past its time", func() bool {
		rec, err := s.Get(t.Context(), soon.Key)
		must(t, err)
		return rec.Attempt == 0
	})
	found := false
	l.set(func(_ int, req *policy.Request) (*http.Response, error) {
		resp, err := req.Next()
		if err == nil && !found && req.Raw().Method == http.MethodGet {
			found = true
			testenv.Await(t, "the key is claimed", func() bool {
				rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: keys[1], Owner: [16]byte{2}}, Lease: time.Hour})
				must(t, err)
				return rec.Status == once.Running
			})
		}
		return resp, err
	})
	n, err := s.Forget(t.Context(), 10)
	must(t, err)
	if rec, err := s.Get(t.Context(), keys[1]); n != 2 || err != nil || rec.Status != once.Running {
		t.Errorf("Forget has forgotten %d keys, and the key that was claimed is %v, %v", n, rec.Status, err)
	}
}

// inPartition returns the nth id of a key in a default partition.
func inPartition(partition byte, n int) string {
	for i := 0; ; i++ {
		id := fmt.Sprint(i)
		if fence(id).Key.UUID()[0] != partition {
			continue
		}
		if n--; n < 0 {
			return id
		}
	}
}

// The index entity of an open key is only for List.
func TestAnIndexEntityThatIsGoneIsNotMissed(t *testing.T) {
	c := table(t)
	s := tablestore.New(c, nil)
	f := claim(t, s, "1")
	partition, row := rowOf(f.Key)
	_, err := c.DeleteEntity(t.Context(), partition, strings.Replace(row, "key", "open", 1), nil)
	must(t, err)
	must(t, s.Settle(t.Context(), done(f, []byte("answer"))))
	if rec, err := s.Get(t.Context(), f.Key); err != nil || rec.Status != once.Done {
		t.Errorf("Get returned %v, %v", rec, err)
	}
}

func TestListFindsEverythingOpen(t *testing.T) {
	const keys = 170
	for name, partition := range map[string]func(once.Key) string{
		"default": nil, "crowded": nil, "one": inOne, "many": func(k once.Key) string { return "c" + k.ID },
	} {
		s := tablestore.New(table(t), &tablestore.Options{Partition: partition})
		want := make(map[string]bool)
		for i := range keys {
			id := fmt.Sprint(i)
			if name == "crowded" { // the index of one partition takes several requests
				id = inPartition(0x2a, i)
			}
			f := claim(t, s, id)
			if want[f.Key.ID] = i%3 != 0; !want[f.Key.ID] {
				delete(want, f.Key.ID)
				must(t, s.Settle(t.Context(), done(f, nil)))
			}
		}
		for _, limit := range []int{0, 1, 7, 1000} {
			q, found := once.RecordQuery{Status: []once.Status{once.Running}, Limit: limit}, make(map[string]bool)
			for more := true; more; more = q.After != (once.Key{}) {
				page, err := s.List(t.Context(), q)
				must(t, err)
				for _, rec := range page.Records {
					if found[rec.Key.ID] || !want[rec.Key.ID] {
						t.Errorf("%s: %s is listed twice, or not running", name, rec.Key.ID)
					}
					found[rec.Key.ID] = true
				}
				if limit > 0 && len(page.Records) > limit {
					t.Errorf("%s: a page of %d has %d records", name, limit, len(page.Records))
				}
				q.After = page.Next
			}
			if len(found) != len(want) {
				t.Errorf("%s: %d of %d are listed in pages of %d", name, len(found), len(want), limit)
			}
		}
		// One that a query selects comes after many that it does not.
		last := once.Key{}
		for id := range want {
			if k := fence(id).Key; last == (once.Key{}) || onlyRow(k) > onlyRow(last) {
				last = k
			}
		}
		must(t, s.Settle(t.Context(), once.Settlement{Fence: fence(last.ID), Status: once.Parked}))
		parked := 0
		q := once.RecordQuery{Status: []once.Status{once.Parked}}
		for more := true; more; more = q.After != (once.Key{}) {
			page, err := s.List(t.Context(), q)
			must(t, err)
			parked += len(page.Records)
			q.After = page.Next
		}
		if parked != 1 {
			t.Errorf("%s: %d parked keys are listed", name, parked)
		}
	}
}

func TestATransactionThatTheServiceCannotTakeIsInvalid(t *testing.T) {
	l := &line{}
	c := table(t, l)
	s := tablestore.New(c, &tablestore.Options{Partition: func(k once.Key) string { return "p" + k.ID }})
	_, err := s.Get(t.Context(), fence("1").Key)
	must(t, err)
	large := effect("p1", "large", strings.Repeat("x", 1<<20))
	twice := effect("p1", "twice", "x")
	for name, body := range map[string]func(*tablestore.Tx) error{
		"another partition": func(tx *tablestore.Tx) error { return tx.Write(effect("p2", "1", "x")) },
		"two partitions":    func(tx *tablestore.Tx) error { return tx.Write(effect("p1", "1", "x"), effect("p2", "2", "x")) },
		"twice":             func(tx *tablestore.Tx) error { return tx.Write(twice, twice) },
		"a key's RowKey":    func(tx *tablestore.Tx) error { return tx.Write(effect("p1", "once-key-x", "x")) },
		"no RowKey": func(tx *tablestore.Tx) error {
			return tx.Write(aztables.TransactionAction{Entity: []byte(`{"PartitionKey":"p1"}`)})
		},
		"too many": func(tx *tablestore.Tx) error {
			for i := range 100 {
				must(t, tx.Write(effect("p1", fmt.Sprint(i), "x")))
			}
			return nil
		},
		"too large": func(tx *tablestore.Tx) error {
			for i := range 5 {
				large.Entity = bytes.Replace(large.Entity, []byte("large"), []byte(fmt.Sprint("larg", i)), 1)
				must(t, tx.Write(large))
				large = effect("p1", "large", strings.Repeat("x", 1<<20))
			}
			return nil
		},
		"a commit of its own":   func(tx *tablestore.Tx) error { return tx.Commit(context.Background()) },
		"a rollback of its own": func(tx *tablestore.Tx) error { return tx.Rollback() },
	} {
		l.set(nil)
		_, err := once.DoTx(t.Context(), s, pay.For("1"),
			func(_ context.Context, tx *tablestore.Tx) (string, error) { return "paid", body(tx) })
		if !errors.Is(err, once.ErrInvalid) || l.count() != 1 { // the look at the key
			t.Errorf("%s: DoTx returned %v after %d requests", name, err, l.count())
		}
	}
	for _, bad := range []string{"", "a/b", `a\b`, "a#b", "a?b", "a'b", "a\x00b", "M\xc3", strings.Repeat("x", 513)} {
		l.set(nil)
		s := tablestore.New(c, &tablestore.Options{Partition: func(once.Key) string { return bad }})
		if _, err := s.Get(t.Context(), fence("1").Key); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("in the partition %q, Get returned %v", bad, err)
		}
	}
	odd := tablestore.New(c, &tablestore.Options{Partition: func(once.Key) string { return "Müller & Söhne (1+1=2%) \"quoted\"" }})
	f := claim(t, odd, "odd")
	must(t, odd.Settle(t.Context(), done(f, nil)))
	if rec, err := odd.Get(t.Context(), f.Key); err != nil || rec.Status != once.Done {
		t.Errorf("in an odd partition, Get returned %v, %v", rec, err)
	}
}

// An entity that has changed since it was read is a conflict, and the work runs
// again. Other refusals are errors that name the action.
func TestConditionsOfAUser(t *testing.T) {
	c := table(t)
	s := open(c)
	stock := func(n int) aztables.EDMEntity {
		return aztables.EDMEntity{Entity: aztables.Entity{PartitionKey: "all", RowKey: "stock"}, Properties: map[string]any{"Left": int32(n)}}
	}
	write(t, c, stock(10))
	runs := 0
	got, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *tablestore.Tx) (string, error) {
		was := read(t, c, "all", "stock")
		if runs++; runs == 1 {
			write(t, c, stock(5))
		}
		text, err := json.Marshal(stock(int(was.Properties["Left"].(int32)) - 1))
		must(t, err)
		return fmt.Sprint("run ", runs), tx.Write(aztables.TransactionAction{ActionType: aztables.TransactionTypeUpdateReplace, Entity: text,
			IfMatch: to.Ptr(azcore.ETag(was.ETag))})
	})
	if left := read(t, c, "all", "stock").Properties["Left"]; err != nil || got != "run 2" || left != int32(4) {
		t.Errorf("DoTx returned %q, %v, and %v are left", got, err, left)
	}
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second) // for one that goes on trying
	defer cancel()
	_, err = once.DoTx(soon, s, pay.For("2"), func(_ context.Context, tx *tablestore.Tx) (string, error) {
		return "", tx.Write(effect("all", "new", "x"), effect("all", "stock", "x"))
	})
	if err == nil || errors.Is(err, once.ErrConflict) || errors.Is(err, once.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "action 2 ") ||
		!strings.Contains(err.Error(), string(aztables.EntityAlreadyExists)) {
		t.Errorf("DoTx with an entity that exists returned %v", err)
	}
	if left := entities(t, c, "RowKey eq 'new'"); len(left) > 0 {
		t.Error("a part of a refused transaction was applied")
	}
	if rec, err := s.Get(t.Context(), pay.For("2").Key()); err != nil || rec.Status != once.Absent {
		t.Errorf("after a refusal, the key is %v, %v", rec.Status, err)
	}
}

func TestATransactionOfTheCaller(t *testing.T) {
	c := table(t)
	s := open(c)
	for _, commits := range []bool{false, true} {
		tx := s.Begin()
		got, err := once.InTx(t.Context(), s, tx, pay.For("1"), func(context.Context) (string, error) {
			return "paid", tx.Write(effect("all", "1", "1"))
		})
		if err != nil || got != "paid" {
			t.Fatalf("InTx returned %q, %v", got, err)
		}
		if commits {
			must(t, tx.Commit(t.Context()))
		}
		must(t, tx.Rollback())
		if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("Commit after the end returned %v", err)
		}
		if n, err := count(t.Context(), c, "1"); err != nil || n != map[bool]int{true: 1}[commits] {
			t.Errorf("commits %v: there are %d effects, %v", commits, n, err)
		}
	}
}

func TestAnOutcomeThatIsTooLargeIsRefused(t *testing.T) {
	s := open(table(t))
	f := claim(t, s, "1")
	if err := s.Settle(t.Context(), done(f, make([]byte, 1<<20))); !errors.Is(err, once.ErrOutcomeRefused) {
		t.Errorf("Settle returned %v", err)
	}
	if limit := s.Options().MaxOutcome; limit != 704<<10 {
		t.Errorf("the limit is %d", limit)
	}
	if limit := tablestore.New(nil, &tablestore.Options{Options: once.Options{MaxOutcome: 100}}).Options().MaxOutcome; limit != 100 {
		t.Errorf("a lower limit has become %d", limit)
	}
}

// A missing table is an error, and not a key that was never seen.
func TestAMissingTableIsAnError(t *testing.T) {
	s := tablestore.New(dial(t, "missing"), nil)
	if rec, err := s.Get(t.Context(), fence("1").Key); err == nil {
		t.Errorf("Get returned %v", rec)
	}
	if page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running}}); err == nil {
		t.Errorf("List returned %v", page)
	}
}
