package once_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/effectively-once/once"
)

func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func TestRunAllEndsTheOthersWhenOneFails(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	ended := false
	err := once.RunAll(t.Context(),
		func(context.Context) error { return nil }, // its end ends nobody
		func(context.Context) error { return first },
		func(ctx context.Context) error { <-ctx.Done(); ended = true; return second },
		func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("stopped: %w", ctx.Err()) },
		untilEnd)
	if !ended || err == nil || err.Error() != "first\nsecond" || !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("%v, and the other has ended: %v", err, ended)
	}
}

func TestRunAllIsNilWhenToldToStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := make(chan struct{})
	err := once.RunAll(ctx,
		func(context.Context) error { return nil },
		func(ctx context.Context) error { close(began); return untilEnd(ctx) },
		func(ctx context.Context) error { <-began; cancel(); <-ctx.Done(); return ctx.Err() })
	if err != nil {
		t.Error(err)
	}
	late, cancelLate := context.WithTimeout(t.Context(), 0)
	defer cancelLate()
	if err := once.RunAll(late, func(ctx context.Context) error { return ctx.Err() }, untilEnd); err != nil {
		t.Error(err)
	}
}

func TestRunAllRefusesNil(t *testing.T) {
	ran := false
	err := once.RunAll(t.Context(), func(context.Context) error { ran = true; return nil }, nil)
	if !errors.Is(err, once.ErrInvalid) || ran {
		t.Errorf("%v, and ran: %v", err, ran)
	}
	if err := once.RunAll(t.Context()); err != nil {
		t.Error(err)
	}
}

// A service runs until SIGTERM, or until a part of it cannot go on. Give it the Run methods of its parts:
//
//	err := once.RunAll(ctx, billing.Run, letters.Run, relay.Run, janitor.Run)
func ExampleRunAll() {
	ctx, stop := context.WithCancel(context.Background())
	consumer := func(ctx context.Context) error {
		<-ctx.Done()
		fmt.Println("the consumer has stopped")
		return nil
	}
	relay := func(context.Context) error {
		return errors.New("the relay has no publisher")
	}
	err := once.RunAll(ctx, consumer, relay)
	stop()
	fmt.Println(err)
	// Output:
	// the consumer has stopped
	// the relay has no publisher
}
