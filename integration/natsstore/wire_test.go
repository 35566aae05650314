package natsstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/effectively-once/once/integration/internal/natswire"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// dialThrough connects through a wire.
func dialThrough(t *testing.T, url string, w *natswire.Wire) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.SetCustomDialer(w))
	proof.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	proof.Must(t, err)
	return js
}

// requests returns how many requests were made since the last call, by the kind
// of their subjects.
func requests(w *natswire.Wire) map[string]int {
	n := make(map[string]int)
	for _, subject := range w.Subjects() {
		n[kindOf(subject)]++
	}
	return n
}

// kindOf returns what a request is for.
func kindOf(subject string) string {
	for _, kind := range []string{"STREAM.INFO", "MSG.GET", "MSG.DELETE", ".open.", ".done."} {
		if strings.Contains(subject, kind) {
			return strings.Trim(kind, ".")
		}
	}
	return fmt.Sprintf("%q", subject)
}
