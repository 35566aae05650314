package storetest_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/storetest"
)

// consumerBugs are seeded bugs in the capabilities for consumers, each with the
// cases that must catch it.
var consumerBugs = map[string]string{
	"keys of the last time": "registry/keys-stay",
	"empty keys stay empty": "registry/first",
	"no sign of life":       "registry/seen",
	"names without case":    "registry/names",
	"looks, then registers": "registry/race",

	"any source":                         "registry/source-stays registry/source-race",
	"shares with any source":             "registry/source-stays",
	"never shared":                       "registry/shared registry/source-facts",
	"facts of the first time":            "registry/source-facts",
	"looks for a source, then registers": "registry/source-race",

	"renaming is a sign of life":      "registry/rename",
	"renames only to new names":       "registry/rename-merges",
	"refusals are swallowed":          "registry/rename-refused registry/retire-refused",
	"looks, then renames":             "registry/rename-race",
	"retired names are free":          "registry/retire",
	"positions of retired ones stand": "registry/retire-positions",

	"epochs from 0 on":              "position/never-written",
	"opening begins anew":           "position/opened",
	"no fence":                      "position/fenced position/set",
	"SetPosition fences nobody":     "position/set",
	"moves from anywhere":           "position/elsewhere",
	"repeat taken for lost":         "position/repeated position/race",
	"repeat runs again":             "position/repeated position/race",
	"rows in a commit of their own": "position/fails",
	"commits on a panic":            "position/panics",
	"error of the body flattened":   "position/fails",
	"digest lost":                   "position/exact position/moves",
	"offsets as floats":             "position/exact",
	"partitions in no order":        "position/lists",
	"keys in a commit of their own": "position/keys",
	"context ignored":               "position/context-ended",
	"ends with its context":         "position/context-ends",
	"conflict taken for lost":       "position/in-flight",
	"looks, then moves":             "position/race",

	"bodies made texts":                  "shelf/exact shelf/sealed",
	"headers made texts":                 "shelf/exact",
	"key lost":                           "shelf/exact shelf/sealed",
	"bodies cut at 1 MiB":                "shelf/large",
	"put aside in a commit of its own":   "shelf/commits",
	"put aside again is a change":        "shelf/again shelf/again-tx",
	"put aside backwards":                "shelf/order shelf/order-tx shelf/exact",
	"what is invalid is skipped":         "shelf/invalid",
	"lost beside another":                "shelf/race",
	"always shelved":                     "shelf/flag",
	"parked blocks nobody":               "shelf/blocked",
	"handled blocks":                     "shelf/blocked",
	"blocked by a snapshot":              "shelf/blocked-fresh",
	"blocked by what is not committed":   "shelf/blocked-fresh",
	"changes the body":                   "shelf/change",
	"change forgets the history":         "shelf/change",
	"changed whatever the version":       "shelf/stale-change shelf/stale-change-tx shelf/change-race",
	"changed in a commit of its own":     "shelf/change-tx",
	"changes of many are changes of all": "shelf/change-many",
	"queues are listed":                  "shelf/queued",
	"handled stays":                      "shelf/handled shelf/blocked-handled",
	"long reasons are cut":               "shelf/invalid-change",
	"forgets without a limit":            "shelf/forget",
	"forgets early":                      "shelf/forget",
	"states ignored":                     "shelf/selects",
	"topics without case":                "shelf/selects",
	"pages overlap":                      "shelf/pages",
	"pages without a limit":              "shelf/pages",
	"due at once":                        "shelf/due",
	"nothing holds":                      "shelf/ready shelf/replay",
	"parked always holds":                "shelf/ready",
}

func (k *keeper) Shelve(ctx context.Context, ms []store.Shelved) error {
	switch k.bug {
	case "put aside again is a change":
		k.changeThose(ctx, ms)
	case "what is invalid is skipped":
		for _, m := range ms {
			if err := k.Store.Shelve(ctx, []store.Shelved{m}); err != nil && !errors.Is(err, once.ErrInvalid) {
				return err
			}
		}
		return nil
	case "lost beside another":
		defer k.shelving.Add(-1)
		if k.shelving.Add(1) > 1 {
			return nil
		}
		<-time.After(time.Millisecond) // so that there is another
	}
	return k.Store.Shelve(ctx, k.asides(ms))
}

// changeThose changes messages that are on the shelf.
func (k *keeper) changeThose(ctx context.Context, ms []store.Shelved) {
	for _, m := range ms {
		there, _ := k.Store.Shelved(ctx, store.ShelfQuery{Consumer: m.Consumer, IDs: []string{m.Message.ID}})
		if len(there) > 0 {
			there[0].Reason = m.Reason
			_ = k.Store.Change(ctx, there[0])
		}
	}
}

func (k *keeper) ShelveTx(ctx context.Context, tx *memstore.Tx, ms []store.Shelved) error {
	if k.has("put aside in a commit of its own") || k.has("blocked by what is not committed") {
		return k.Store.Shelve(ctx, ms)
	}
	if k.has("put aside again is a change") {
		k.changeThose(ctx, ms)
	}
	return k.Store.ShelveTx(ctx, tx, k.asides(ms))
}

func (k *keeper) BlockedTx(ctx context.Context, tx *memstore.Tx, consumer string, keys []string,
	parkedToo bool) ([]string, error) {

	got, err := k.Store.BlockedTx(ctx, tx, consumer, keys, parkedToo && !k.has("parked blocks nobody"))
	if k.has("handled blocks") && slices.Contains(keys, "handled") {
		got = append(got, "handled")
	}
	if k.has("blocked by a snapshot") {
		k.mu.Lock()
		defer k.mu.Unlock()
		if first, ok := k.answers[tx]; ok {
			return first, err
		}
		k.answers[tx] = got
	}
	return got, err
}

// present returns a message as it is on the shelf.
func (k *keeper) present(ctx context.Context, seq int64) (m store.Shelved) {
	all, _ := k.Store.Shelved(ctx, store.ShelfQuery{After: seq - 1, Limit: 1})
	if len(all) > 0 && all[0].Seq == seq {
		m = all[0]
	}
	return m
}

func (k *keeper) spoilChange(ctx context.Context, m store.Shelved) store.Shelved {
	switch k.bug {
	case "changed whatever the version":
		m.Version = k.present(ctx, m.Seq).Version
	case "change forgets the history":
		m.History = ""
	case "long reasons are cut":
		m.Reason = m.Reason[:min(len(m.Reason), 64<<10)]
	case "handled stays":
		if m.State == store.Handled && m.History == "" {
			m.History = "kept"
		}
	}
	return m
}

func (k *keeper) Change(ctx context.Context, m store.Shelved) error {
	return k.Store.Change(ctx, k.spoilChange(ctx, m))
}

func (k *keeper) ChangeMany(ctx context.Context, ms []store.Shelved) (changed []bool, err error) {
	if !k.has("changes of many are changes of all") {
		return k.Store.ChangeMany(ctx, ms)
	}
	for _, m := range ms {
		m.Version = k.present(ctx, m.Seq).Version
		changed = append(changed, true)
		if err := k.Store.Change(ctx, m); err != nil {
			return nil, err
		}
	}
	return changed, nil
}

func (k *keeper) ChangeTx(ctx context.Context, tx *memstore.Tx, m store.Shelved) error {
	if k.has("changed in a commit of its own") {
		return k.Store.Change(ctx, m)
	}
	return k.Store.ChangeTx(ctx, tx, k.spoilChange(ctx, m))
}

func (k *keeper) ForgetShelved(ctx context.Context, keep time.Duration, limit int) (int, error) {
	switch {
	case k.has("forgets early"):
		keep = -1 // also what has changed just now
	case k.has("forgets without a limit") && limit > 0:
		n, err := k.Store.ForgetShelved(ctx, keep, 1000)
		return min(n, limit), err
	}
	return k.Store.ForgetShelved(ctx, keep, limit)
}

func (k *keeper) Shelved(ctx context.Context, q store.ShelfQuery) ([]store.Shelved, error) {
	topic := q.Topic
	switch k.bug {
	case "states ignored":
		q.States = nil
	case "topics without case":
		q.Topic = ""
	case "queues are listed":
		q.NoQueued = false
	case "pages overlap":
		q.After--
	case "pages without a limit":
		q.Limit = 1000
	case "parked always holds":
		q.BehindParked = true
	case "nothing holds":
		if q.Ready {
			q.Ready, q.States = false, []store.ShelfState{store.Waiting}
		}
	}
	all, err := k.Store.Shelved(ctx, q)
	if k.has("topics without case") && topic != "" {
		all = slices.DeleteFunc(all, func(m store.Shelved) bool { return !strings.EqualFold(m.Message.Topic, topic) })
	}
	if k.has("changes the body") {
		for i, m := range all {
			if m.Version > 1 {
				all[i].Message.Body = nil
			}
		}
	}
	return all, err
}

func TestNoBugInConsumers(t *testing.T) {
	pass(t, func() []storetest.Case { return storetest.TxCases(t, keeping("")) })
}

func TestBugsInConsumersAreCaught(t *testing.T) { catch(t, consumerBugs, keeping) }

// TestEveryCaseOfConsumersCatchesABug checks that no case for consumers is
// redundant.
func TestEveryCaseOfConsumersCatchesABug(t *testing.T) {
	named := strings.Fields(strings.Join(slices.Collect(maps.Values(consumerBugs)), " "))
	for _, c := range storetest.TxCases(t, keeping("")) {
		group, _, _ := strings.Cut(c.Name, "/")
		if (group == "registry" || group == "position" || group == "shelf") && !slices.Contains(named, c.Name) {
			t.Errorf("no seeded bug is caught by %s", c.Name)
		}
	}
}
