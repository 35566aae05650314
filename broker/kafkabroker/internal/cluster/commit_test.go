package cluster

import (
	"errors"
	"testing"

	"github.com/effectively-once/once/broker"
)

func TestMetadataOfACommit(t *testing.T) {
	for _, own := range []Mark{{Offset: 3, Reach: 103, Log: "orders#00ff and more"}, {Offset: 3, Reach: 103, Gap: 2, Log: "orders#00ff and more"}} {
		text := own.metadata()
		if got := parse(3, &text); got != own {
			t.Errorf("%q was read as %+v", text, got)
		}
	}
	for _, foreign := range []string{"", "once", "once 7", "once x log", "other 7 log", "once 7-4 log", "once 7--1 log", "once 7- log"} {
		if got := parse(3, &foreign); got != (Mark{Offset: 3, Reach: -1}) {
			t.Errorf("%q was read as %+v", foreign, got)
		}
	}
	if got := parse(-1, nil); got != (Mark{Offset: -1, Reach: -1}) {
		t.Errorf("no commit was read as %+v", got)
	}
}

func TestTopicPartitionsAreReadAsTheyAreWritten(t *testing.T) {
	at := TopicPartition{Topic: "orders.v1", Number: 12}
	if got, err := ParseTopicPartition(at.String()); got != at || err != nil {
		t.Error(got, err)
	}
	for _, text := range []string{"orders", "orders/", "orders/x", "orders/99999999999"} {
		if _, err := ParseTopicPartition(text); !errors.Is(err, broker.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
