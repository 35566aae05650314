// Package tablestore tests HTTP handlers and consumers on the store in Azure
// Tables. The service is Azurite.
package tablestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/membroker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/tablestore"
)

// shop is a table with the payments of customers, each in the partition of its
// customer.
type shop struct {
	name      string
	client    *aztables.Client
	partition func(once.Key) string
}

func openShop(t *testing.T, partition func(once.Key) string) *shop {
	service, err := aztables.NewServiceClientFromConnectionString(testenv.Azurite(t), nil)
	proof.Must(t, err)
	// The account is random, so no other server accepts the client.
	name := fmt.Sprint("shop", time.Now().UnixNano())
	s := &shop{name, service.NewClient(name), partition}
	proof.Must(t, s.store().Migrate(t.Context()))
	t.Cleanup(func() {
		_, err := s.client.Delete(context.Background(), nil)
		proof.Must(t, err)
	})
	return s
}

// store returns a store as another process has it.
func (s *shop) store() *tablestore.Store {
	return tablestore.New(s.client, &tablestore.Options{Partition: s.partition})
}

// payment is a new entity of an order.
func payment(customer, order string) aztables.TransactionAction {
	text, err := json.Marshal(map[string]string{"PartitionKey": customer, "RowKey": fmt.Sprintf("payment %016x", rand.Uint64()), "Order": order})
	if err != nil {
		panic(err) // a map of strings
	}
	return aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: text}
}

func (s *shop) payments(t *testing.T, customer, order string) (n int) {
	filter := fmt.Sprintf("PartitionKey eq '%s' and Order eq '%s'", customer, order)
	for pages := s.client.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &filter}); pages.More(); {
		page, err := pages.NextPage(t.Context())
		proof.Must(t, err)
		n += len(page.Entities)
	}
	return n
}

// Requests are repeated, also at the same time and by another process: each pays
// once, and has one answer. The scope of a key is the customer, and so is the
// partition.
func TestEachRequestPaysOnce(t *testing.T) {
	s := openShop(t, func(k once.Key) string { return k.Scope })
	var fronts []*httptest.Server
	for range 2 {
		front := httptest.NewServer(httponce.HandlerTx(s.store(), func(r *http.Request) (string, error) { return r.Header.Get("Customer"), nil },
			func(w http.ResponseWriter, r *http.Request, tx *tablestore.Tx) error {
				customer, order := r.Header.Get("Customer"), r.Header.Get("Order")
				if err := tx.Write(payment(customer, order)); err != nil {
					return err
				}
				w.WriteHeader(http.StatusCreated)
				_, err := fmt.Fprintf(w, "receipt %016x", rand.Uint64())
				return err
			}, &httponce.Options{Operation: "pay"}))
		defer front.Close()
		fronts = append(fronts, front)
	}
	const orders, repeats = 10, 6
	answers := make([][]string, orders)
	for i := range answers {
		answers[i] = make([]string, repeats)
	}
	var calling sync.WaitGroup
	for i := range orders * repeats {
		calling.Go(func() {
			order, customer := fmt.Sprint(i%orders), fmt.Sprint("c", i%orders%3)
			for end := time.Now().Add(proof.Patience); time.Now().Before(end); {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fronts[i/orders%2].URL, strings.NewReader("{}"))
				if err != nil {
					t.Error(err)
					return
				}
				request.Header.Set("Idempotency-Key", `"order-`+order+`"`)
				request.Header.Set("Customer", customer)
				request.Header.Set("Order", order)
				response, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if err == nil && response.StatusCode == http.StatusCreated {
					answers[i%orders][i/orders] = string(body)
					return
				}
				if response.StatusCode != http.StatusConflict && response.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("order %s: %s, %s", order, response.Status, body)
					return
				}
			}
		})
	}
	calling.Wait()
	for i, all := range answers {
		order := fmt.Sprint(i)
		if n := s.payments(t, fmt.Sprint("c", i%3), order); n != 1 {
			t.Errorf("order %s was paid %d times", order, n)
		}
		for _, answer := range all {
			if answer == "" || answer != all[0] {
				t.Errorf("order %s has the answers %q", order, all)
				break
			}
		}
	}
}

// Several processes consume a queue that delivers messages twice, loses
// acknowledgements and restarts. Each message has one effect.
func TestEachMessageHasOneEffect(t *testing.T) {
	const messages, processes, all = 40, 3, "all"
	each := func(s *tablestore.Store) inbox.Handler {
		return inbox.Tx(s, func(_ context.Context, tx *tablestore.Tx, m *broker.Message) error {
			if rand.N(10) == 0 {
				return errors.New("failed, on purpose")
			}
			return tx.Write(payment(all, m.ID))
		})
	}
	batch := func(s *tablestore.Store) inbox.Handler {
		return inbox.Batch(s, func(_ context.Context, tx *tablestore.Tx, ms []*broker.Message) error {
			for _, m := range ms {
				if err := tx.Write(payment(all, m.ID)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for name, handler := range map[string]func(*tablestore.Store) inbox.Handler{"each alone": each, "batches": batch} {
		t.Run(name, func(t *testing.T) {
			s, b := openShop(t, func(once.Key) string { return all }), membroker.New(nil)
			var ms []*broker.Message
			for i := range messages {
				ms = append(ms, &broker.Message{ID: fmt.Sprint(i), Topic: "orders"})
			}
			b.Duplicate(messages / 2)
			b.LoseAcks(messages / 4)
			source := b.Queue("orders")
			proof.Must(t, errors.Join(b.Publisher().Publish(t.Context(), ms)...))
			ctx, stop := context.WithCancel(proof.Soon(t))
			defer stop()
			stats := new(inbox.Stats)
			var running sync.WaitGroup
			for range processes {
				running.Go(func() {
					c := &inbox.Consumer{Name: "points", Source: source, Stats: stats, Handler: handler(s.store())}
					if err := c.Run(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			proof.Await(t, "some messages are handled", func() bool { return stats.Handled.Load() > messages/4 })
			b.Restart()
			store := s.store()
			proof.Await(t, "every message is handled", func() bool {
				for _, m := range ms {
					rec, err := store.Get(ctx, once.Key{Operation: "points", ID: m.ID})
					if err != nil || rec.Status != once.Done {
						return false
					}
				}
				return true
			})
			stop()
			running.Wait()
			for _, m := range ms {
				if n := s.payments(t, all, m.ID); n != 1 {
					t.Errorf("message %s had %d effects", m.ID, n)
				}
			}
		})
	}
}
