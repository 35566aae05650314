package inbox

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

// What is remembered of topics has a limit, and a topic that is down is not
// forgotten.
func TestTheMemoryOfTopicsIsLimited(t *testing.T) {
	o := newOutages(&Consumer{Stats: new(Stats), Retry: Retry{Outage: time.Hour}}, slog.New(slog.DiscardHandler))
	of := func(topic string) *item {
		return &item{Delivery: broker.Delivery{Message: &broker.Message{ID: topic, Topic: topic}}}
	}
	poison := errors.New("poison")
	if whose, _ := o.failed(t.Context(), of("down"), Unavailable(poison)); whose != nobodys {
		t.Fatal("it is blamed")
	}
	bad := of("bad")
	o.failed(t.Context(), bad, poison)
	for i := range 20 * topicsLimit {
		o.passed(t.Context(), of(fmt.Sprint("orders.", i)))
		if i%3 == 0 {
			o.failed(t.Context(), of(fmt.Sprint("bad.", i)), poison)
		}
		if len(o.topics) > topicsLimit {
			t.Fatalf("%d topics are remembered", len(o.topics))
		}
	}
	if !o.isDown("down") || !o.hasOther("down") {
		t.Error("the topic that is down is forgotten, or all others")
	}
	if parks, _ := o.mayPark(t.Context(), bad, poison, 10); !parks {
		t.Error("the evidence against a message is forgotten")
	}
}
