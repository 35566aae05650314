//go:build linux

package server

import (
	"slices"
	"testing"

	"github.com/effectively-once/once/internal/testenv"
)

func TestRabbitMQsAreKeptApart(t *testing.T) {
	testenv.RabbitMQs(t)
	need(t, RabbitMQs)
	before := epmds(t)
	c, err := StartRabbitMQs(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	sees := func(node int, others ...int) func() bool {
		return func() bool {
			running, err := c.Running(t.Context(), node)
			slices.Sort(running)
			return err == nil && slices.Equal(running, others)
		}
	}
	if after := epmds(t); len(after) > len(before) {
		t.Errorf("an epmd was started: %v, before there were %v", after, before)
	}
	c.Isolate(0)
	testenv.Await(t, "the others go on", sees(1, 1, 2))
	testenv.Await(t, "the isolated one pauses", func() bool {
		_, err := c.Running(t.Context(), 0)
		return err != nil
	})
	c.Heal()
	for node := range 3 {
		testenv.Await(t, "all are members again", sees(node, 0, 1, 2))
	}
}
