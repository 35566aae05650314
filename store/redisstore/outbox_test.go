package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/redisstore"
	"github.com/redis/go-redis/v9"
)

func message(id, order string) store.Outgoing {
	return store.Outgoing{Message: broker.Message{ID: id, Topic: "paid", OrderingKey: order, Body: []byte("\xff" + id)}}
}

func put(t *testing.T, s *redisstore.Store, ms ...store.Outgoing) {
	t.Helper()
	tx := s.Begin()
	must(t, s.PutTx(t.Context(), tx, ms))
	must(t, tx.Commit(t.Context()))
}

func pending(t *testing.T, s *redisstore.Store) []store.Outgoing {
	t.Helper()
	all, err := s.Outgoing(t.Context(), store.OutgoingQuery{State: store.Pending})
	must(t, err)
	return all
}

func idsOf(ms []store.Outgoing) (ids []string) {
	for _, m := range ms {
		ids = append(ids, m.Message.ID)
	}
	return ids
}

// documents returns all documents and the index, with when they expire.
func documents(t *testing.T, c *redis.Client, prefix string) map[string]any {
	t.Helper()
	all := make(map[string]any)
	for _, key := range keysOf(t, c, prefix) {
		switch {
		case strings.Contains(key, ":doc:"):
			fields, err := c.HGetAll(t.Context(), key).Result()
			must(t, err)
			at, err := c.PExpireTime(t.Context(), key).Result()
			must(t, err)
			all[key] = fmt.Sprint(fields, at)
		case strings.HasSuffix(key, ":out"):
			members, err := c.ZRange(t.Context(), key, 0, -1).Result()
			must(t, err)
			all[key] = members
		}
	}
	return all
}

// Redis undoes nothing by itself: neither when the first command fails, nor when
// a later one does, may a message be published.
func TestIfACommandFailsNoDocumentIsWritten(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	must(t, c.Set(t.Context(), prefix+"text", "x", 0).Err())
	put(t, s, message("before", "order"))
	before := documents(t, c, prefix)
	for id, parked := range map[string]bool{"first": false, "later": true} {
		_, err := s.Transact(t.Context(), []once.ClaimRequest{request(id, 1)}, settling(func(tx *redisstore.Tx) {
			must(t, s.PutTx(t.Context(), tx, []store.Outgoing{message(id, "order"), message(id, ""), message(id, "new")}))
			if parked {
				tx.Incr(t.Context(), prefix+"count")
			}
			tx.LPush(t.Context(), prefix+"text", "1")
		}))
		if err == nil || errors.Is(err, once.ErrParked) != parked {
			t.Errorf("%s: Transact returned %v", id, err)
		}
		if after := documents(t, c, prefix); !reflect.DeepEqual(before, after) {
			t.Errorf("%s: there is\n%v, and was\n%v", id, after, before)
		}
		if ids := idsOf(pending(t, s)); !slices.Equal(ids, []string{"before"}) {
			t.Errorf("%s: the outbox has %q", id, ids)
		}
	}
	put(t, s, message("after", "order"))
	if ids := idsOf(pending(t, s)); !slices.Equal(ids, []string{"before", "after"}) {
		t.Errorf("the outbox has %q", ids)
	}
}

// If commands were applied without their position, the consumer would apply them
// again.
func TestAPositionWhoseCommandsAreAppliedInPartWaits(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	must(t, c.Set(t.Context(), prefix+"text", "x", 0).Err())
	from, err := s.OpenPosition(t.Context(), "stock", "0")
	must(t, err)
	to := from
	to.Log, to.Offset = "log", 7
	for range 2 {
		err := s.TransactAt(t.Context(), from, to, func(tx *redisstore.Tx) error {
			tx.Incr(t.Context(), prefix+"count")
			return tx.LPush(t.Context(), prefix+"text", "1").Err()
		})
		if !errors.Is(err, once.ErrParked) || !strings.Contains(err.Error(), "command 2 of 2 (lpush) failed") {
			t.Errorf("TransactAt returned %v", err)
		}
		if n := c.Get(t.Context(), prefix+"count").Val(); n != "1" {
			t.Errorf("the first command ran %s times", n)
		}
		if _, err := s.OpenPosition(t.Context(), "stock", "0"); !errors.Is(err, once.ErrParked) {
			t.Errorf("OpenPosition returned %v", err)
		}
	}
	all, err := s.Positions(t.Context(), "stock")
	if err != nil || len(all) != 1 || all[0] != from {
		t.Errorf("Positions returned %v, %v", all, err)
	}
	must(t, s.SetPosition(t.Context(), to))
	is, err := s.OpenPosition(t.Context(), "stock", "0")
	if err != nil || is.Log != "log" || is.Offset != 7 {
		t.Errorf("once it is set, OpenPosition returned %v, %v", is, err)
	}
}

// Only what is not needed may expire.
func TestMessagesNeverExpire(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	put(t, s, message("1", "order"))
	_, err := s.LeaseLanes(t.Context(), [16]byte{1}, time.Minute, []int{1})
	must(t, err)
	for range 2 { // moved, the second time
		for _, key := range keysOf(t, c, prefix) {
			left := c.TTL(t.Context(), key).Val()
			if strings.HasSuffix(key, ":doc:decided") { // a note of what people did lately
				continue
			}
			if isOrder := strings.Contains(key, ":doc:order/"); isOrder != (left > 23*time.Hour) || !isOrder && left >= 0 {
				t.Errorf("%s expires in %v", key, left)
			}
		}
		_, err := s.MoveOutgoing(t.Context(), [16]byte{}, pending(t, s), store.Stuck)
		must(t, err)
	}
}

// A move is not sent again: the second time it would find nothing, and be taken
// for one of somebody else.
func TestALostReplyOfAMoveIsAnError(t *testing.T) {
	c := connect(t)
	s, _ := fresh(t, c)
	put(t, s, message("1", ""), message("2", ""))
	all := pending(t, s)
	loses := &losing{fault: io.ErrUnexpectedEOF}
	c.AddHook(loses)
	if n, err := s.Sent(t.Context(), [16]byte{}, all[:1], store.Delete); !errors.Is(err, io.ErrUnexpectedEOF) || n != 0 || loses.n != 1 {
		t.Errorf("Sent returned %d, %v after %d lost replies", n, err, loses.n)
	}
	if n, err := s.Sent(t.Context(), [16]byte{}, all, store.Delete); n != 1 || err != nil {
		t.Errorf("Sent of one that is gone and another returned %d, %v", n, err)
	}
	if left := pending(t, s); len(left) > 0 {
		t.Errorf("the outbox has %q", idsOf(left))
	}
}

func TestALostReplyOfAPutPublishesOnce(t *testing.T) {
	c := connect(t)
	s, _ := fresh(t, c)
	loses := &losing{fault: io.ErrUnexpectedEOF}
	c.AddHook(loses)
	_, err := once.DoTx(t.Context(), s, pay.For("1"), func(ctx context.Context, tx *redisstore.Tx) (string, error) {
		return "paid", s.PutTx(ctx, tx, []store.Outgoing{message("1", "order")})
	})
	if ids := idsOf(pending(t, s)); err != nil || loses.n != 1 || !slices.Equal(ids, []string{"1"}) {
		t.Errorf("DoTx returned %v after %d lost replies, and the outbox has %q", err, loses.n, ids)
	}
}

// A page of documents is bounded, so that the server is not busy for long.
func TestLargeMessagesAreReadInSeveralPages(t *testing.T) {
	c := connect(t)
	s, prefix := fresh(t, c)
	var want []string
	for i := range 8 {
		m := message(fmt.Sprint(i), "order")
		m.Message.Body = make([]byte, 3<<20)
		put(t, s, m)
		want = append(want, m.Message.ID)
	}
	all := pending(t, s)
	if ids := idsOf(all); !slices.Equal(ids, want) {
		t.Errorf("the outbox has %q", ids)
	}
	// Somebody has deleted one, but not its name.
	for _, key := range keysOf(t, c, prefix) {
		if strings.HasSuffix(key, fmt.Sprintf("%016x", all[3].Seq)) {
			must(t, c.Del(t.Context(), key).Err())
		}
	}
	if ids := idsOf(pending(t, s)); !slices.Equal(ids, slices.Delete(want, 3, 4)) {
		t.Errorf("the outbox has %q", ids)
	}
}

func TestTransactionsOfStoresOfOtherRecordsAreRefused(t *testing.T) {
	c := connect(t)
	a, prefix := fresh(t, c)
	b, _ := fresh(t, c)
	if err := b.PutTx(t.Context(), a.Begin(), []store.Outgoing{message("1", "")}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("with another prefix, PutTx returned %v", err)
	}
	o := *c.Options()
	o.DB = 1
	elsewhere := redis.NewClient(&o)
	t.Cleanup(func() { _ = elsewhere.Close() })
	other := redisstore.New(elsewhere, &redisstore.Options{Prefix: prefix})
	if err := other.PutTx(t.Context(), a.Begin(), []store.Outgoing{message("1", "")}); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("with another database, PutTx returned %v", err)
	}
	same := redisstore.New(connect(t), &redisstore.Options{Prefix: prefix})
	must(t, same.PutTx(t.Context(), a.Begin(), []store.Outgoing{message("1", "")}))
}

// An ear that hears nothing more says so.
func TestAnEarEndsIfItsConnectionOrStreamIsLost(t *testing.T) {
	c := connect(t)
	for name, lose := range map[string]func(prefix string){
		"the stream": func(prefix string) {
			must(t, c.Del(t.Context(), prefix+"{00}:bell").Err())
		},
		"the connection": func(string) {
			clients, err := c.ClientList(t.Context()).Result()
			must(t, err)
			for line := range strings.Lines(clients) {
				if id, _, _ := strings.Cut(line, " "); strings.Contains(line, "cmd=xread ") {
					must(t, c.ClientKillByFilter(t.Context(), "ID", strings.TrimPrefix(id, "id=")).Err())
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, prefix := fresh(t, c)
			put(t, s, message("1", ""))
			e, err := s.HearOutbox(t.Context())
			must(t, err)
			defer e.Close()
			awaitBlocked(t, c)
			lose(prefix)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := e.Wait(ctx); err == nil || ctx.Err() != nil {
				t.Errorf("Wait returned %v", err)
			}
		})
	}
}

// awaitBlocked returns when an ear listens.
func awaitBlocked(t *testing.T, c *redis.Client) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		info, err := c.Info(t.Context(), "clients").Result()
		must(t, err)
		if !strings.Contains(info, "blocked_clients:0") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no ear listens")
		}
	}
}

func TestAnEarIsClosedAtOnce(t *testing.T) {
	c := connect(t)
	s, _ := fresh(t, c)
	e, err := s.HearOutbox(t.Context())
	must(t, err)
	awaitBlocked(t, c)
	began := time.Now()
	e.Close()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
}
