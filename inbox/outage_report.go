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

// reportOutages writes the outages to the store until ctx ends, and reads those of
// others.
func (e *env) reportOutages(ctx context.Context) {
	if rec, err := e.readOutages(ctx); err == nil {
		e.endNote(ctx, rec)
	}
	own := make(map[string]bool) // topics that this run has reported
	pause := &backoff.Backoff{First: storePause, Limit: outageEvery}
	every := &backoff.Backoff{First: outageEvery, Limit: outageEvery} // processes that start together drift apart
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.outages.changed:
		case <-time.After(every.Next()):
			if len(own) == 0 {
				_, _ = e.readOutages(ctx) // which has it reported if one is over
				continue
			}
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

// readOutages learns of the outages that others have reported.
func (e *env) readOutages(ctx context.Context) (once.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	rec, err := e.store.Get(ctx, outageKey(e.keys))
	if err == nil && rec.Status == once.Absent && // else somebody writes it now
		len(e.outages.goOn(outagesIn(e.store, rec, outageKept), nil, rec.Created.Add(rec.Age))) > 0 {
		e.outages.report()
	}
	return rec, err
}

func (e *env) reportOnce(ctx context.Context, own map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	key := outageKey(e.keys)
	now := make(map[string]bool)
	err := e.note(ctx, key, outageKept, func(was once.Record, at time.Time) string {
		all := outagesIn(e.store, was, outageKept)
		var over map[string]bool
		if was.Status == once.Absent {
			over = e.outages.goOn(all, own, at)
		}
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
			seen := now
			if !t.probing { // it is known until the next message should be tried
				seen = now.Add(-max(time.Since(t.next), 0))
			}
			reason := name.Reason(t.reason)
			all = append(all, Outage{t.name, now.Add(-time.Since(t.since)), seen, reason[:min(len(reason), outageReason)]})
		}
	}
	return all
}

// goOn has outages begin when they did for an earlier run, or another process. It
// returns the topics of those that are over, because something got through here
// after they were last seen. They are those of a report, which each process reads
// every minute: others may have found that one is over. own are topics that this run
// has reported, and at is now by the clock of the store.
func (o *outages) goOn(reported []Outage, own map[string]bool, at time.Time) (over map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	over = make(map[string]bool)
	clear(o.earlier)
	for _, t := range o.topics {
		t.since = t.own
	}
	o.all.since = o.all.own
	for _, was := range reported {
		t := o.topics[was.Topic]
		if was.Topic == AllTopics {
			t = o.all
		}
		since, seen := time.Now().Add(-at.Sub(was.Since)), time.Now().Add(-at.Sub(was.Seen))
		switch {
		case t != nil && t.down:
			if since.Before(t.since) && !t.lately.After(since) {
				t.since = since
			}
		case t != nil && !t.lately.Before(seen):
			over[was.Topic] = true
		case !own[was.Topic]:
			o.earlier[was.Topic] = since
		}
	}
	return over
}
