package abandon_test

import (
	"context"
	"errors"
	"testing"

	"github.com/effectively-once/once/internal/abandon"
)

func TestAskReturnsTheReply(t *testing.T) {
	want := errors.New("refused")
	if got, err := abandon.Ask(context.Background(), func() (int, error) { return 7, want }); got != 7 || err != want {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestAskDoesNotWaitForADeafRequest(t *testing.T) {
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	answer := make(chan struct{})
	defer close(answer)
	_, err := abandon.Ask(ctx, func() (int, error) {
		cancel(why)
		<-answer
		return 7, nil
	})
	if err != why {
		t.Errorf("got %v", err)
	}
}
