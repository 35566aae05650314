package history

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once/integration/internal/natswire"
	"github.com/effectively-once/once/integration/internal/offices"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store/natsstore"
)

// natsPlace is a bucket of a server in this process. Effects are elsewhere.
func natsPlace(t testing.TB) *place {
	server, elsewhere := offices.StartNATS(t), newLedger()
	js, err := offices.DialNATS(server.URL())
	proof.Must(t, err)
	t.Cleanup(js.Conn().Close)
	first := natsstore.New(js, nil)
	proof.Await(t, "the bucket is there", func() bool { return first.Migrate(t.Context()) == nil })
	return &place{resolution: time.Microsecond, brief: shortLease, longest: shortPause, beside: 4, units: 5, open: func(bool) (*process, error) {
		l := newLine(shortPause)
		js, err := offices.DialNATS(server.URL(), nats.SetCustomDialer(l.natsWire()))
		if err != nil {
			return nil, err
		}
		return &process{store: natsstore.New(js, nil), effects: elsewhere, line: l, close: js.Conn().Close}, nil
	}}
}

// natsCut is the code of the error of a client that has no reply.
const natsCut = 64999

// isNATSCut reports whether err has that code.
func isNATSCut(err error) bool {
	var is *jetstream.APIError
	return errors.As(err, &is) && is.ErrorCode == natsCut
}

// natsWire returns the line as one on which frames of NATS go wrong.
func (l *line) natsWire() *natswire.Wire {
	var after time.Duration // of the latest request
	return &natswire.Wire{
		Choose: func(string, string) natswire.Fault {
			var what mishap
			what, after = l.next()
			return map[mishap]natswire.Fault{loseRequest: natswire.Request, loseReply: natswire.Reply, delay: natswire.Late,
				stall: natswire.Stall}[what]
		},
		Delay: func(send func()) { l.later(after, send) },
		Cut:   natsCut,
	}
}
