package inbox

import (
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

func TestAMessageIsTooOldWhenItsKeyMayBeForgotten(t *testing.T) {
	const day = 24 * time.Hour
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	never := time.Unix(1, 0)
	for name, test := range map[string]struct {
		made, since, begun time.Time
		want               bool
	}{
		"young":                             {ago(29 * day), time.Time{}, ago(0), false},
		"old, and nothing is known":         {ago(31 * day), time.Time{}, ago(0), true},
		"old, before the last sign of life": {ago(31 * day), ago(20 * day), ago(0), true},
		"old, after the last sign of life":  {ago(31 * day), ago(40 * day), ago(0), false},
		"old, for a consumer that is new":   {ago(31 * day), never, ago(0), false},
		"old, in a run that is as old":      {ago(31 * day), never, ago(32 * day), true},
		"without a time":                    {time.Time{}, time.Time{}, ago(32 * day), false},
	} {
		e := &env{Consumer: &Consumer{Policy: once.Policy{KeepKey: 30 * day}}, since: test.since, begun: test.begun}
		it := &item{Delivery: broker.Delivery{Message: &broker.Message{Time: test.made}}}
		if got := e.tooOld(it); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
