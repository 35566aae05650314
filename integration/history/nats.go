package history

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/natsstore"
)

// natsPlace is a bucket of a server in this process. Effects are elsewhere.
func natsPlace(t testing.TB) *place {
	server, elsewhere := offices.StartNATS(t), newLedger()
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
	return &place{resolution: time.Microsecond, brief: shortLease, longest: shortPause, beside: 4, units: 5, open: func(bool) (*process, error) {
		return &process{store: natsstore.New(connections[int(next.Add(1))%len(connections)], nil), effects: elsewhere}, nil
	}}
}
