package brokers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/proof"
)

func publish(tb testing.TB, p broker.Publisher, ms ...*broker.Message) {
	tb.Helper()
	for i, err := range p.Publish(proof.Soon(tb), ms) {
		if err != nil {
			tb.Fatalf("message %s: %v", ms[i].ID, err)
		}
	}
}

func openSession(tb testing.TB, source broker.Source, window int) broker.Session {
	tb.Helper()
	s, err := source.Open(proof.Soon(tb), window)
	proof.Must(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	})
	return s
}

// receive receives n deliveries.
func receive(tb testing.TB, s broker.Session, n int) (ds []broker.Delivery) {
	tb.Helper()
	ctx := proof.Soon(tb)
	for len(ds) < n {
		more, err := s.Receive(ctx, n-len(ds))
		if err != nil {
			tb.Fatalf("received %d of %d messages: %v", len(ds), n, err)
		}
		ds = append(ds, more...)
	}
	return ds
}

// receiveNothing fails if a message comes within a time.
func receiveNothing(tb testing.TB, s broker.Session, within time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), within)
	defer cancel()
	switch ds, err := s.Receive(ctx, 100); {
	case err == nil:
		tb.Fatalf("%d messages have come, the first is %v", len(ds), ds[0].Message)
	case !errors.Is(err, context.DeadlineExceeded):
		tb.Fatal(err)
	}
}

// receiveAll receives until nothing has come for some time.
func receiveAll(tb testing.TB, s broker.Session) (ms []*broker.Message) {
	tb.Helper()
	for {
		ctx, cancel := context.WithTimeout(tb.Context(), 300*time.Millisecond)
		ds, err := s.Receive(ctx, 1000)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return ms
		case err != nil:
			tb.Fatal(err)
		}
		for _, d := range ds {
			ms = append(ms, d.Message)
		}
	}
}
