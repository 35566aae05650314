package inbox

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/name"
)

// Outage is a topic of which nothing gets through at a consumer. See [Retry].
type Outage struct {
	Topic  string    `json:"topic"` // AllTopics if nothing of any gets through
	Since  time.Time `json:"since"`
	Seen   time.Time `json:"seen"`   // when a process of the consumer last reported it
	Reason string    `json:"reason"` // why the latest message failed
}

// OutageShown is how long after it was last reported an outage may be over,
// because the consumer has ended.
const OutageShown = 3 * time.Minute

const (
	outageEvery   = time.Minute // how often an outage is reported again
	outageReason  = 300         // bytes of the reason in a report
	outagesListed = 100         // topics in a report
)

// outageSuffix makes the operation of the key whose reason has the outages of a
// consumer. Like the keys of countSuffix, it is no work.
const outageSuffix = "@@outages"

func outageKey(keys string) once.Key { return once.Key{Operation: keys + outageSuffix, ID: "outages"} }

// Outages returns the topics of which nothing gets through now, as processes of a
// consumer have reported them. keys is the Keys of the consumer in the registry of
// the store.
func Outages(ctx context.Context, s once.Store, keys string) ([]Outage, error) {
	rec, err := s.Get(ctx, outageKey(keys))
	if err != nil {
		return nil, err
	}
	return outagesIn(s, rec, OutageShown), nil
}

// outagesIn returns the outages in a record that were reported lately.
func outagesIn(s once.Store, rec once.Record, lately time.Duration) (all []Outage) {
	if rec.Status != once.Absent || rec.Reason == "" || json.Unmarshal([]byte(s.Options().Sealing.OpenReason(rec)), &all) != nil {
		return nil
	}
	now := rec.Created.Add(rec.Age)
	return slices.DeleteFunc(all, func(o Outage) bool { return now.Sub(o.Seen) > lately })
}

// reportOutages writes the outages to the store until ctx ends.
func (e *env) reportOutages(ctx context.Context) {
	if rec, err := e.store.Get(ctx, outageKey(e.keys)); err == nil {
		e.endNote(ctx, rec)
		e.outages.goOn(outagesIn(e.store, rec, outageKept), rec.Created.Add(rec.Age))
	}
	own := make(map[string]bool) // topics that this run has reported
	pause := &backoff.Backoff{First: storePause, Limit: outageEvery}
	for {
		var again <-chan time.Time
		if len(own) > 0 {
			again = time.After(outageEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-e.outages.changed:
		case <-again:
		}
		for ctx.Err() == nil {
			err := e.reportOnce(ctx, own)
			if err == nil {
				pause = &backoff.Backoff{First: storePause, Limit: outageEvery}
				break
			}
			e.logger.WarnContext(ctx, "inbox: an outage could not be reported", logs.Spaced(""), "error", err)
			_ = backoff.Sleep(ctx, pause.Next())
		}
	}
}

func (e *env) reportOnce(ctx context.Context, own map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	key := outageKey(e.keys)
	now := make(map[string]bool)
	err := e.note(ctx, key, outageKept, func(was once.Record, at time.Time) string {
		all := outagesIn(e.store, was, outageKept)
		over := e.outages.goOn(all, at)
		mine := e.outages.list(at)
		all = slices.DeleteFunc(all, func(o Outage) bool {
			return own[o.Topic] || over[o.Topic] || slices.ContainsFunc(mine, func(m Outage) bool { return m.Topic == o.Topic })
		})
		all = append(all, mine...)
		slices.SortFunc(all, func(a, b Outage) int { return cmp.Compare(a.Topic, b.Topic) })
		clear(now)
		for _, o := range mine {
			now[o.Topic] = true
		}
		if len(all) == 0 {
			return ""
		}
		text, _ := json.Marshal(all[:min(len(all), outagesListed)]) // of texts and times
		return e.store.Options().Sealing.SealReason(key, string(text))
	})
	if err != nil {
		return err
	}
	clear(own)
	for topic := range now {
		own[topic] = true
	}
	return nil
}

// list returns the topics that are down and whose messages are tried, with their
// times by the clock of the store.
func (o *outages) list(now time.Time) (all []Outage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range append(slices.Collect(maps.Values(o.topics)), o.all) {
		if t.down && !t.isIdle() {
			reason := name.Reason(t.reason)
			all = append(all, Outage{t.name, now.Add(-time.Since(t.since)), now, reason[:min(len(reason), outageReason)]})
		}
	}
	return all
}

// goOn has outages begin when they did for an earlier run, or another process. It
// returns the topics of those that are over, because something got through here
// after they were last seen. They are those of a report, which is read again
// whenever an outage begins or ends here: others may have found that one is over. at
// is now, by the clock of the store.
func (o *outages) goOn(reported []Outage, at time.Time) (over map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	over = make(map[string]bool)
	for _, was := range reported {
		t := o.topics[was.Topic]
		if was.Topic == AllTopics {
			t = o.all
		}
		since, seen := time.Now().Add(-at.Sub(was.Since)), time.Now().Add(-at.Sub(was.Seen))
		switch {
		case t != nil && t.lately.After(seen):
			over[was.Topic] = true
		case t == nil || !t.down:
			o.earlier[was.Topic] = true
		case since.Before(t.since) && !t.lately.After(since) && time.Since(seen) <= OutageShown:
			t.since = since
		}
	}
	return over
}
