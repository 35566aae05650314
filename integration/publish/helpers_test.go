//go:build linux

package publish

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/outbox"
)

// Functions that all proofs share.
var (
	must       = proof.Must
	beside     = proof.Beside
	await      = proof.Await
	pause      = proof.Pause
	soon       = proof.Soon
	settled    = proof.Settled
	testLogger = proof.Logger
	newSeed    = proof.Seed
	soaking    = proof.Soaking
)

const patience = proof.Patience

// run runs a relay in this process until the test ends or stop is called.
func run(t testing.TB, r *outbox.Relay) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// relay returns a relay in this process that publishes to a press.
func (w *world) relay(t testing.TB, p *press) *outbox.Relay {
	return quick(&outbox.Relay{Store: w.store, Publisher: newCourier(p.url, "here"), Lease: 8 * time.Second,
		Logger: testLogger(t), Stats: new(outbox.Stats)})
}
