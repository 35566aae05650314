package main

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// The test binary also runs the child processes.
func TestMain(m *testing.M) {
	if dir := os.Getenv("ONCE_ORDERS_WORKER"); dir != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := work(ctx, dir); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestOrders(t *testing.T) {
	var out strings.Builder
	if err := play(t.Context(), &out, story{orders: 20, kills: 3, seed: 7}); err != nil {
		t.Error(err)
	}
	t.Log(out.String())
}
