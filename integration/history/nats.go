package history

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/natsstore"
)

// natsPlace is a bucket of a server in this process. Effects are elsewhere.
func natsPlace(t testing.TB) *place {
	server, elsewhere := offices.StartNATS(t), &ledger{values: map[once.Key][]int64{}}
	dial := func() jetstream.JetStream {
		js, err := offices.DialNATS(server.URL())
		proof.Must(t, err)
		t.Cleanup(js.Conn().Close)
		return js
	}
	connections := []jetstream.JetStream{dial(), dial(), dial()}
	var next atomic.Int64
	first := natsstore.New(connections[0], nil)
	proof.Await(t, "the bucket is there", func() bool { return first.Migrate(t.Context()) == nil })
	return &place{resolution: time.Microsecond, brief: shortLease, longest: shortPause, beside: 4, units: 5, open: func() (*process, error) {
		return &process{store: natsstore.New(connections[int(next.Add(1))%len(connections)], nil), effects: elsewhere}, nil
	}}
}

// ledger has effects in memory.
type ledger struct {
	mu     sync.Mutex
	values map[once.Key][]int64
}

func (l *ledger) write(_ context.Context, k once.Key, value int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values[k] = append(l.values[k], value)
	return nil
}

func (l *ledger) read(_ context.Context, k once.Key) (n, value int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.values[k] {
		n, value = n+1, max(value, v)
	}
	return n, value, nil
}
