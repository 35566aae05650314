// Package unstablekey makes keys.
package unstablekey

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	mathrand "math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

type order struct {
	ID    string
	Items []item
}

type item struct{ ID string }

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

func work(context.Context, once.Key) (string, error) { return "", nil }

func save(context.Context, string) error { return nil }

func newID() string { return "order-" + uuid.NewString() }

func direct(o order, d amqp.Delivery, m types.Message) {
	pay.For(o.ID)
	pay.For(uuid.NewString())                                                     // want `unstablekey: the key contains uuid.NewString, so that it is another one when the work comes again`
	pay.For(uuid.New().String())                                                  // want `unstablekey: the key contains uuid.New,`
	pay.For(uuid.Must(uuid.NewRandom()).String())                                 // want `unstablekey: the key contains uuid.NewRandom`
	pay.For(uuid.NewSHA1(uuid.UUID{}, []byte(o.ID)).String())                     // of the order
	pay.For(fmt.Sprintf("%s-%d", o.ID, time.Now().UnixNano()))                    // want `unstablekey: the key contains time.Now`
	pay.For(o.ID + "/" + strconv.Itoa(mathrand.IntN(1000)))                       // want `unstablekey: the key contains rand.IntN`
	pay.For(time.Now().Format(time.RFC3339))                                      // want `unstablekey: the key contains time.Now`
	pay.For(newID())                                                              // want `unstablekey: the key contains uuid.NewString`
	pay.For(rand.Text()[:8])                                                      // want `unstablekey: the key contains rand.Text`
	pay.For(o.ID).In(uuid.NewString())                                            // want `unstablekey: the key contains uuid.NewString`
	pay.Under(once.Key{Operation: "order", ID: uuid.NewString()})                 // want `unstablekey: the key contains uuid.NewString`
	_ = once.RecordQuery{After: once.Key{Operation: "pay", ID: uuid.NewString()}} // a place in a list
	pay.Under(pay.For(o.ID).Key().Step(rand.Text()))                              // want `unstablekey: the key contains rand.Text`
	_ = broker.Message{ID: uuid.NewString()}                                      // a new message
	pay.For(strconv.FormatUint(d.DeliveryTag, 10))                                // want `unstablekey: the key contains the tag of the delivery`
	pay.For(d.MessageId)
	pay.For(*m.ReceiptHandle) // want `unstablekey: the key contains the handle of the delivery`
	pay.For(*m.MessageId)
}

func variables(ctx context.Context, s *memstore.Store, r *http.Request) error {
	id := fmt.Sprintf("pay-%d", time.Now().UnixNano())
	log.Println("paying", id)
	if _, err := once.Do(ctx, s, pay.For(id), work); err != nil { // want `unstablekey: the key contains time.Now`
		return err
	}
	random := make([]byte, 16)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	if _, err := once.Do(ctx, s, pay.For(hex.EncodeToString(random)), work); err != nil { // want `unstablekey: the key contains rand.Read`
		return err
	}
	made := order{ID: uuid.NewString()}
	if _, err := once.Do(ctx, s, pay.For(made.ID), work); err != nil { // want `unstablekey: the key contains uuid.NewString`
		return err
	}

	stored := uuid.NewString()
	if err := save(ctx, stored); err != nil { // whoever comes again reads it
		return err
	}
	if _, err := once.Do(ctx, s, pay.For(stored), work); err != nil {
		return err
	}
	given := r.Header.Get("Idempotency-Key")
	if given == "" {
		given = uuid.NewString()
	}
	_, err := once.Do(ctx, s, pay.For(given), work)
	return err
}

func loops(ctx context.Context, s *memstore.Store, o order, ids []string) error {
	for i := range o.Items {
		_, _ = once.Do(ctx, s, pay.For(fmt.Sprintf("%s/%d", o.ID, i)), work) // want `unstablekey: the key contains the index of a loop`
		_, _ = once.Do(ctx, s, pay.For(o.Items[i].ID), work)
	}
	for i := range ids {
		_, _ = once.Do(ctx, s, pay.For(ids[i]), work)
	}
	for i := 0; i < len(o.Items); i++ {
		_, _ = once.Do(ctx, s, pay.For(strconv.Itoa(i)), work) // want `unstablekey: the key contains the index of a loop`
	}
	for _, it := range o.Items {
		_, _ = once.Do(ctx, s, pay.For(it.ID), work)
	}
	for attempt := range 3 {
		_, _ = once.Do(ctx, s, pay.For(fmt.Sprint(o.ID, attempt)), work) // want `unstablekey: the key contains the number of the attempt`
	}
	for i := 0; i < 3; i++ {
		_, err := once.Do(ctx, s, pay.For(fmt.Sprint(o.ID, i)), work) // want `unstablekey: the key contains the number of the attempt`
		if err == nil {
			return nil
		}
	}
	for n := range 100 { // a load of work
		_, _ = once.Do(ctx, s, pay.For(strconv.Itoa(n)), work)
	}
	id := uuid.NewString()
	for range 3 { // this process repeats it
		if _, err := once.Do(ctx, s, pay.For(id), work); err == nil {
			return nil
		}
	}
	return errors.New("three failures")
}

func functions(s *memstore.Store) {
	_ = &inbox.Consumer{Name: "a", Key: func(m *broker.Message) (string, error) {
		return uuid.NewString(), nil // want `unstablekey: the key contains uuid.NewString`
	}}
	_ = &inbox.Consumer{Name: "b", Key: func(m *broker.Message) (string, error) { return m.ID, nil }}
	c := &inbox.Consumer{Name: "c"}
	c.Key = byTime
	_ = httponce.Options{Key: func(r *http.Request, body []byte) (string, error) {
		return rand.Text(), nil // want `unstablekey: the key contains rand.Text`
	}}
}

func byTime(m *broker.Message) (string, error) {
	return m.Time.Format(time.RFC3339), nil // want `unstablekey: the key contains the time of the message`
}

const daily = "daily-2006-01-02"

func today() string { return time.Now().UTC().Format(time.DateOnly) }

func now() string { return time.Now().UTC().Format(time.DateTime) }

// periods has the keys of jobs that run once an hour, a day, or less often.
func periods(layout string, every time.Duration) {
	pay.For("daily-" + time.Now().Format(time.DateOnly))
	pay.For(time.Now().In(time.UTC).Format(daily))
	pay.For(time.Now().Format("2006-01-02T15"))
	pay.For(string(time.Now().AppendFormat(nil, "Jan 2006")))
	pay.For(today())
	pay.For(time.Now().Truncate(24 * time.Hour).Format(time.RFC3339))
	pay.For(strconv.FormatInt(time.Now().Truncate(time.Hour).Unix(), 10))
	pay.For(fmt.Sprintf("%d-%d", time.Now().Year(), time.Now().YearDay()))
	pay.For(fmt.Sprint(time.Now().Date()))
	year, week := time.Now().ISOWeek()
	pay.For(fmt.Sprintf("%d-W%d", year, week))
	year, month, day := time.Now().Date()
	pay.For(time.Date(year, month, day, time.Now().Hour(), 0, 0, 0, time.UTC).String())

	pay.For(time.Now().Format("2006-01-02T15:04"))                     // want `unstablekey: the key contains time.Now`
	pay.For(time.Now().Format("20060102.150405"))                      // want `unstablekey: the key contains time.Now`
	pay.For(time.Now().Format(time.StampMicro))                        // want `unstablekey: the key contains time.Now`
	pay.For(time.Now().Format(time.Kitchen))                           // want `unstablekey: the key contains time.Now`
	pay.For(string(time.Now().AppendFormat(nil, time.DateTime)))       // want `unstablekey: the key contains time.Now`
	pay.For(time.Now().Format(layout))                                 // want `unstablekey: the key contains time.Now`
	pay.For(now())                                                     // want `unstablekey: the key contains time.Now`
	pay.For(time.Now().Truncate(time.Minute).Format(time.RFC3339))     // want `unstablekey: the key contains time.Now`
	pay.For(time.Now().Truncate(every).String())                       // want `unstablekey: the key contains time.Now`
	pay.For(fmt.Sprint(time.Now().YearDay(), time.Now().Minute()))     // want `unstablekey: the key contains time.Now`
	pay.For(time.Now().Format(time.DateOnly) + "-" + uuid.NewString()) // want `unstablekey: the key contains uuid.NewString`
}

func built(order string, again bool) {
	k := order
	k += "-" + uuid.NewString()
	pay.For(k) // want `unstablekey: the key contains uuid.NewString`
	if again {
		order += "-again"
	}
	pay.For(order)
	made := func() string { return uuid.NewString() }
	pay.For(made()) // want `unstablekey: the key contains uuid.NewString`
	named := func() string { return order }
	pay.For(named())
}
