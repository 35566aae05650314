//go:build go1.25

package outbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// A page ends before more than MaxBytes, so it may be short although there is more behind it.
func TestLargePoisonInFrontDoesNotHoldUpOthers(t *testing.T) {
	for name, bodies := range map[string][]int{
		"larger than a page":    {3000},
		"as large as a page":    {500, 500, 500, 500},
		"before a large one":    {10, 3000},
		"many that are smaller": {300, 300, 300, 300, 300, 300, 300, 300},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bench) {
				r := b.relay()
				r.MaxBytes = 1000
				b.sender.set(nil, func(m *broker.Message) error {
					if m.Topic == "missing" {
						return errDown
					}
					return nil
				})
				for i, size := range bodies {
					m := some(len(bodies), "a", "")[i]
					m.Topic, m.Body = "missing", make([]byte, size)
					b.put(m)
				}
				b.put(some(20, "b", "")...)
				stop := b.run(r)
				time.Sleep(10 * time.Minute)
				stop()
				for _, m := range some(20, "b", "") {
					if !slices.Contains(b.sender.taken(), m.ID) {
						b.Errorf("%s is not out after ten minutes", m.ID)
					}
				}
			})
		})
	}
}
