package brokers_test

import (
	"testing"

	"github.com/effectively-once/once/integration/internal/natsproc"
)

func TestNATSProcess(t *testing.T) { natsproc.Serve(t) }

func startNATSProcess(tb testing.TB) *natsproc.Process {
	tb.Helper()
	return natsproc.Start(tb, natsproc.Settings{})
}

func startNATSCluster(tb testing.TB) []*natsproc.Process {
	tb.Helper()
	return natsproc.StartCluster(tb, natsproc.Settings{})
}

// killNATSLeader kills the server that leads the stream or its consumer, and
// restarts it.
func killNATSLeader(tb testing.TB, all []*natsproc.Process, p *natsPlace, ofConsumer bool) {
	tb.Helper()
	consumer := ""
	if ofConsumer {
		consumer = "billing"
	}
	natsproc.Leader(tb, all, p.js, p.stream, consumer).Restart(tb)
}
