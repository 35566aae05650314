// Package prove shows what package oncetest finds: mistakes that nearly everybody has made once, each with its mended
// twin.
//
// Read mistakes_test.go. Each test has a small service with a mistake, the same service without it, and the words by
// which oncetest names the window. The first is given to a testing.TB that records what it is told, and must fail
// there. Its twin gets the real one, and must pass.
//
//	go test ./prove                                          # everything
//	go test -v -run 'TestAckBeforeCommit' ./prove            # shows also what was reported about the mistake
//	go test -run 'TestAckBeforeCommit/crash_before' ./prove  # some schedules of the mended twin
package prove

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/store/memstore"
)

// orders are the messages of all examples: two customers, three orders. The body is what is to be paid.
func orders() []*broker.Message {
	at := time.Now().Add(-time.Minute)
	return []*broker.Message{
		{ID: "order-1", OrderingKey: "ann", Body: []byte("10"), Time: at},
		{ID: "order-2", OrderingKey: "bob", Body: []byte("20"), Time: at.Add(7 * time.Second)},
		{ID: "order-3", OrderingKey: "ann", Body: []byte("30"), Time: at.Add(9 * time.Second)},
	}
}

// shop is what outlives every process: a database, and the events that others have got from us.
type shop struct {
	db     *memstore.Store
	events *membroker.Broker
}

func newShop(testing.TB) *shop {
	s := &shop{db: memstore.New(nil), events: membroker.New(nil)}
	s.events.Bind("events", "order.paid")
	return s
}

// add is an UPDATE ... SET n = n + amount of the row of a customer.
func add(tx *memstore.Tx, m *broker.Message) error {
	amount, err := strconv.Atoi(string(m.Body))
	if err != nil {
		return err
	}
	was, _ := tx.Get(m.OrderingKey)
	sum, _ := strconv.Atoi(was)
	tx.Set(m.OrderingKey, strconv.Itoa(sum+amount))
	return nil
}

// balances is what customers see.
func balances(_ context.Context, s *shop) (string, error) {
	var lines []string
	for _, customer := range []string{"ann", "bob"} {
		text, _ := s.db.Value(customer)
		sum, _ := strconv.Atoi(text)
		lines = append(lines, fmt.Sprintf("%s has paid %d", customer, sum))
	}
	return strings.Join(lines, "\n"), nil
}

// eventsToo is balances, and the events that others have got. They drop those whose ID they know.
func eventsToo(ctx context.Context, s *shop) (string, error) {
	text, err := balances(ctx, s)
	var ids []string
	for _, m := range s.events.Messages("events") {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		text += "\nevent " + id[:7]
	}
	return text, err
}

// recorder is a testing.TB that only writes down that a test has failed, and why.
type recorder struct {
	testing.TB
	mu   sync.Mutex
	told []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprintf(format, args...))
}
