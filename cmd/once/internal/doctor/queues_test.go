package doctor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/store"
)

// queued registers a consumer of a topic of the store, and puts messages in its queue.
func queued(t *testing.T, at *target.Target, consumer, topic string, n int) {
	t.Helper()
	registry, _ := once.As[store.Registry](at.Store)
	if _, err := registry.Register(t.Context(), store.Consumer{Name: consumer, Source: store.TopicSource(topic)}); err != nil {
		t.Fatal(err)
	}
	shelf, _ := once.As[store.Shelf](at.Store)
	for i := range n {
		id := fmt.Sprint(topic, i)
		row := store.SealShelved(&at.Store.Options().Sealing, store.NewQueued(consumer, id, broker.Message{ID: id, Topic: topic}))
		if err := shelf.Shelve(t.Context(), []store.Shelved{row}); err != nil {
			t.Fatal(err)
		}
	}
}

func change(t *testing.T, at *target.Target, statement string) {
	t.Helper()
	if _, err := at.Tables.DB.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// queueFindings are those about queues, with what they saw.
func queueFindings(t *testing.T, at *target.Target) string {
	t.Helper()
	report, err := doctor.Examine(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range report.Findings {
		if strings.HasPrefix(f.Name, "queue-") {
			found = append(found, f.Name+": "+f.What)
		}
	}
	return strings.Join(found, "\n")
}

const twoHours = " - 7200000000"

func TestQueuesThatNobodyReads(t *testing.T) {
	at := fresh(t)
	queued(t, at, "billing", "orders", 3)
	queued(t, at, "mailing", "orders", 1)
	queued(t, at, "ledger", "orders", 0)
	if found := queueFindings(t, at); found != "" {
		t.Errorf("consumers at work: %s", found)
	}
	change(t, at, "UPDATE once_consumer SET seen = seen"+twoHours+" WHERE name <> 'mailing'")
	if found := queueFindings(t, at); found != "" {
		t.Errorf("their messages are young: %s", found)
	}
	change(t, at, "UPDATE once_shelf SET created = created"+twoHours)
	const want = "queue-unread: Messages wait in the store, and nobody takes them: " +
		"billing (3 messages, the oldest 2 h ago), not seen since 2 h ago."
	if found := queueFindings(t, at); found != want {
		t.Errorf("found %q, want %q", found, want)
	}
	// A process that gave the consumer another name takes what is in its queue.
	change(t, at, "INSERT INTO once_consumer (id, name, source, key_name, seen) SELECT randomblob(16), 'invoicing', source, key_name, seen + 7200000000 "+
		"FROM once_consumer WHERE name = 'billing'")
	if found := queueFindings(t, at); found != "" {
		t.Errorf("the consumer was renamed: %s", found)
	}
}

// documents is a store that keeps a queue in one document: it changes rows one by one.
type documents struct {
	once.Store
	store.Shelf
	store.Registry
	store.Relayable
}

func (d documents) Options() *once.Options { return d.Store.Options() }

func TestQueuesThatAreFull(t *testing.T) {
	at := fresh(t)
	queued(t, at, "billing", "orders", 3)
	queued(t, at, "mailing", "orders", 1)
	queued(t, at, "ledger", "refunds", 2)
	change(t, at, "INSERT INTO once_outbox (id, topic, state, reason, created) SELECT 'o9', 'orders', 2, 'the queue of \"billing\" may be full', "+
		"created"+twoHours+" FROM once_shelf LIMIT 1")
	change(t, at, "INSERT INTO once_outbox (id, topic, state, created) SELECT 'r9', 'refunds', 2, created FROM once_shelf LIMIT 1")
	change(t, at, "UPDATE once_shelf SET created = created"+twoHours)
	if found := queueFindings(t, at); found != "" {
		t.Errorf("queues of rows have no limit: %s", found)
	}
	narrow := documents{Store: at.Store}
	narrow.Shelf, _ = once.As[store.Shelf](at.Store)
	narrow.Registry, _ = once.As[store.Registry](at.Store)
	narrow.Relayable, _ = once.As[store.Relayable](at.Store)
	at.Store = narrow
	const want = "queue-full: Topics wait for queues that may be full: orders waits for billing (3 messages, the oldest 2 h ago) " +
		"or mailing (1 message, the oldest 2 h ago), with a message put 2 h ago."
	if found := queueFindings(t, at); found != want {
		t.Errorf("found %q, want %q", found, want)
	}
}
