package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/dynamostore"
)

func put(t *testing.T, s *dynamostore.Store, id string) {
	t.Helper()
	tx := s.Begin()
	must(t, s.PutTx(t.Context(), tx, []store.Outgoing{{Message: broker.Message{ID: id, Topic: "t", OrderingKey: "k", Body: []byte("\xff")}}}))
	must(t, tx.Commit(t.Context()))
}

func pending(t *testing.T, s *dynamostore.Store) []store.Outgoing {
	t.Helper()
	ms, err := s.Outgoing(t.Context(), store.OutgoingQuery{})
	must(t, err)
	return ms
}

// A message whose deletion is repeated because its reply was lost counts as
// deleted, also if the repeat finds nothing.
func TestADeletionWhoseReplyIsLost(t *testing.T) {
	for _, what := range []fate{lost, unheard} {
		t.Run(fmt.Sprint(what), func(t *testing.T) {
			w := newWorld(t)
			put(t, w.store, "1")
			l := &link{fault: func(is string, n int) fate { return fateOf(is == "DeleteItem" && n == 1, what) }}
			s := dynamostore.New(via(w.url, l, withEager), nil)
			n, err := s.Sent(t.Context(), [16]byte{}, pending(t, s), store.Delete)
			if n != 1 || err != nil || len(pending(t, w.store)) != 0 {
				t.Errorf("Sent returned %d, %v", n, err)
			}
			if n, err := s.Sent(t.Context(), [16]byte{}, []store.Outgoing{{Seq: 1}}, store.Delete); n != 0 || err != nil {
				t.Errorf("Sent of a message that is not there returned %d, %v", n, err)
			}
		})
	}
}

// A move is made once, whatever is lost.
func TestAMoveWhoseReplyIsLost(t *testing.T) {
	for _, what := range []fate{lost, unheard} {
		t.Run(fmt.Sprint(what), func(t *testing.T) {
			w := newWorld(t)
			put(t, w.store, "1")
			l := &link{fault: func(is string, n int) fate { return fateOf(is == "TransactWriteItems" && n == 1, what) }}
			s := dynamostore.New(via(w.url, l, withEager), nil)
			n, err := s.MoveOutgoing(t.Context(), [16]byte{}, pending(t, s), store.Held)
			held, _ := w.store.Outgoing(t.Context(), store.OutgoingQuery{State: store.Held})
			if n != 1 || err != nil || len(held) != 1 || len(pending(t, w.store)) != 0 {
				t.Errorf("MoveOutgoing returned %d, %v, and %d are held", n, err, len(held))
			}
		})
	}
}

// A store that has ended messages does not read them again from an index that is
// behind, and List has no messages.
func TestAnIndexThatIsBehindTheOutbox(t *testing.T) {
	fake := new(dynamofake.Server)
	w := newWorldAt(t, fake)
	put(t, w.store, "1")
	put(t, w.store, "2")
	all := pending(t, w.store)
	if len(all) != 2 {
		t.Fatalf("%d messages are pending", len(all))
	}
	fake.HoldIndexes(1 << 20)
	n, err := w.store.Sent(t.Context(), [16]byte{}, all[:1], store.Delete)
	must(t, err)
	if is := pending(t, w.store); n != 1 || len(is) != 1 || is[0].Message.ID != "2" {
		t.Errorf("after Sent of %d, %d are pending", n, len(is))
	}
	fake.HoldIndexes(0)
	page, err := w.store.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running}})
	if err != nil || len(page.Records) != 0 {
		t.Errorf("List returned %v, %v", page, err)
	}
}

// A relay hears of messages in shards that are new, and not of other writes.
func TestTheBellFollowsNewShards(t *testing.T) {
	w := newWorld(t)
	ear, err := w.store.HearOutbox(t.Context())
	must(t, err)
	defer ear.Close()
	for i := range 3 {
		w.SplitStream("once")
		put(t, w.store, fmt.Sprint(i))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := ear.Wait(ctx); err != nil {
			t.Fatalf("after the split %d, Wait returned %v", i, err)
		}
		cancel()
	}
	_, err = w.store.Sent(t.Context(), [16]byte{}, pending(t, w.store), store.Delete)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := ear.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after deletions, Wait returned %v", err)
	}
}

// Many shards are read at once.
func TestTheBellReadsManyShards(t *testing.T) {
	w := newWorld(t)
	ear, err := w.store.HearOutbox(t.Context())
	must(t, err)
	defer ear.Close()
	for range 40 {
		w.SplitStream("once")
	}
	put(t, w.store, "1")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must(t, ear.Wait(ctx))
}

func withEager(o *dynamodb.Options) { o.Retryer = eager() }
