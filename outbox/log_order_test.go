//go:build go1.25

package outbox_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// The broker does not have a topic for some seconds. Messages of other topics get
// through, and those of each ordering key keep their order, whatever topics they
// have.
func TestATopicThatIsDownForSecondsKeepsTheOrderOfKeys(t *testing.T) {
	for _, from := range []string{"table", "log"} {
		for _, batch := range []int{1, 3, 500} {
			for seed := range uint64(12) {
				t.Run(fmt.Sprintf("%s, batches of %d, seed %d", from, batch, seed), func(t *testing.T) {
					inBubble(t, func(b *bench) {
						var down atomic.Bool
						b.sender.set(nil, func(m *broker.Message) error {
							if m.Topic == "down" && down.Load() {
								return errors.New("no such topic")
							}
							return nil
						})
						r, put := b.relay(), b.put
						if from == "log" {
							log := newLogStore(b.store)
							r.Store, put = log, log.put
						}
						r.Batch = batch
						stop := b.run(r)
						rnd := rand.New(rand.NewPCG(seed, uint64(batch)))
						var all []*broker.Message
						for i := range 400 {
							m := message(fmt.Sprintf("m%04d", i), fmt.Sprint("key", rnd.IntN(8)))
							if rnd.IntN(3) > 0 {
								m.Topic = "down"
							}
							if rnd.IntN(4) == 0 {
								m.OrderingKey = ""
							}
							all = append(all, m)
							put(m)
							down.Store(i/50%2 == 1)
							if rnd.IntN(3) == 0 {
								time.Sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
							}
						}
						down.Store(false)
						b.until("all are out", func() bool { return len(b.sender.taken()) >= len(all) })
						b.wantAll(all)
						for key := range 8 {
							b.wantOrder(fmt.Sprint("key", key))
						}
						stop()
						if n := len(b.rows(3)); n > 0 {
							b.Errorf("%d are stuck, want none: %s", n, strings.Join(b.rows(3), " "))
						}
					})
				})
			}
		}
	}
}
