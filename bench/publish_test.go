package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/effectively-once/once/broker"
)

func backlogMessage(n int) *broker.Message {
	return &broker.Message{ID: fmt.Sprintf("00000000-0000-7000-8000-%012x", n), Body: bytes.Repeat([]byte("x"), bodySize)}
}

// A black hole is full when all messages have arrived, and reports no error if
// each arrived once.
func TestBlackHoleFindsWhatCameTwice(t *testing.T) {
	for name, c := range map[string]struct {
		came []int
		good bool
	}{
		"each once":      {[]int{2, 17, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, true},
		"one twice":      {[]int{2, 17, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 15}, false},
		"one is unknown": {[]int{2, 18, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, false},
	} {
		t.Run(name, func(t *testing.T) {
			hole, full := newBlackHole(17), 0
			hole.full = func() { full++ }
			for _, n := range c.came {
				if full > 0 {
					t.Error("it was full before all had come")
				}
				hole.Publish(t.Context(), []*broker.Message{backlogMessage(n)})
			}
			if full != 1 {
				t.Errorf("it was full %d times", full)
			}
			if err := hole.check(); (err == nil) != c.good {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestArrivalsFindWhatCameTwice(t *testing.T) {
	to := newArrivals()
	to.Publish(t.Context(), []*broker.Message{{ID: "a"}, {ID: "b"}})
	if err := to.await(t.Context(), []string{"b", "a"}); err != nil {
		t.Error(err)
	}
	to.Publish(t.Context(), []*broker.Message{{ID: "a"}})
	if err := to.await(t.Context(), []string{"a"}); err == nil {
		t.Error("a came twice, and nobody noticed")
	}
}

func TestInsertedID(t *testing.T) {
	row := "I\x00\x00\x00\x07N\x00\x03t\x00\x00\x00\x0242t\x00\x00\x00\x03abct\x00\x00\x00\x01x"
	head := "w" + string(make([]byte, 24))
	for data, want := range map[string]string{head + row: "abc", head + "B" + row[1:]: "", "k" + head[1:] + row: ""} {
		if id, ok, err := insertedID([]byte(data)); id != want || ok != (want != "") || err != nil {
			t.Errorf("got %q, %t, %v, want %q", id, ok, err, want)
		}
	}
	for n := len(head) + 1; n < len(head)+len(row)-6; n++ {
		if _, _, err := insertedID([]byte((head + row)[:n])); err == nil {
			t.Errorf("a row of %d bytes was taken for a whole one", n-len(head))
		}
	}
}
