package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

func TestExitCodes(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), nil, exitOK},
		{over, nil, exitOK},
		{t.Context(), errNo, exitNo},
		{t.Context(), usage("x"), exitUsage},
		{t.Context(), fmt.Errorf("x: %w", target.ErrURL), exitUsage},
		{t.Context(), fmt.Errorf("x: %w", target.ErrName), exitUsage},
		{t.Context(), errors.New("x"), exitFailed},
		{over, once.ErrLeaseLost, exitFailed},
		{t.Context(), moved("x"), exitMoved},
		{t.Context(), fmt.Errorf("x: %w", once.ErrLeaseLost), exitMoved},
	} {
		if got := exitOf(c.ctx, c.err); got != c.want {
			t.Errorf("%v is exit code %d, want %d", c.err, got, c.want)
		}
	}
}
