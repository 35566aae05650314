// Package prove shows what package oncetest finds: common mistakes, each with
// its corrected twin.
//
// Read mistakes_test.go. Each test has a small service with a mistake, the same
// service without it, and the words of the finding. The first is run with a
// testing.TB that records failures, and must fail. Its twin is run with the
// real one, and must pass.
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

// orders returns the messages of all examples: three orders of two customers.
// The body is the price.
func orders() []*broker.Message {
	at := time.Now().Add(-time.Minute)
	return []*broker.Message{
		{ID: "order-1", OrderingKey: "ann", Body: []byte("10"), Time: at},
		{ID: "order-2", OrderingKey: "bob", Body: []byte("20"), Time: at.Add(7 * time.Second)},
		{ID: "order-3", OrderingKey: "ann", Body: []byte("30"), Time: at.Add(9 * time.Second)},
	}
}

// shop is what survives a crash: a database, and the events that other systems
// have received.
type shop struct {
	db     *memstore.Store
	events *membroker.Broker
}

func newShop(testing.TB) *shop {
	s := &shop{db: memstore.New(nil), events: membroker.New(nil)}
	s.events.Bind("events", "order.paid")
	return s
}

// add stands for UPDATE ... SET n = n + amount, for the row of a customer.
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

// balances returns what customers see.
func balances(_ context.Context, s *shop) (string, error) {
	var lines []string
	for _, customer := range []string{"ann", "bob"} {
		text, _ := s.db.Value(customer)
		sum, _ := strconv.Atoi(text)
		lines = append(lines, fmt.Sprintf("%s has paid %d", customer, sum))
	}
	return strings.Join(lines, "\n"), nil
}

// eventsToo returns the balances, and the events that other systems have
// received. They drop events whose ID they know.
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

// recorder is a testing.TB that only records failures.
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
