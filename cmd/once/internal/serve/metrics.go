package serve

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once/store"
)

// page builds the text of the metrics. It uses the names and labels of package
// otelonce with a Prometheus exporter, so that alerts hold for both.
type page struct{ strings.Builder }

// series is a value with its label.
type series struct {
	label, value string // empty: the only series of its metric
	number       float64
}

func (p *page) add(kind, name, help string, all ...series) {
	fmt.Fprintf(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	for _, s := range all {
		labels := `once_name="serve"`
		if s.label != "" {
			labels += fmt.Sprintf(",%s=%q", s.label, s.value)
		}
		fmt.Fprintf(p, "%s{%s} %v\n", name, labels, s.number)
	}
}

func just(number float64) series { return series{number: number} }

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func outcome(value string, n *atomic.Int64) series {
	return series{"once_outcome", value, float64(n.Load())}
}

func kind(value string, n *atomic.Int64) series { return series{"once_kind", value, float64(n.Load())} }

func (s *server) metrics() string {
	seen := s.lookouts.see()
	p := new(page)
	p.add("gauge", "once_store_ready", "Whether the database answers and its tables fit this program.", just(oneIf(seen.err == nil)))
	p.add("counter", "once_outbox_unread_total", "Failed reads of the database.", just(float64(seen.failed)))
	if seen.err == nil && seen.unread == nil {
		if seen.outbox {
			p.depth(seen.depth)
		}
		if seen.lag != nil {
			p.lag(seen.lag)
		}
	}
	if s.relay != nil {
		t := &s.published
		p.add("counter", "once_outbox_messages_total", "Messages by outcome.", outcome("published", &t.Published),
			outcome("held", &t.Held), outcome("stuck", &t.Stuck), outcome("repeated", &t.Repeated))
		p.add("counter", "once_outbox_failures_total", "Failed attempts while others succeeded.", just(float64(t.Failed.Load())))
		p.add("counter", "once_outbox_refusals_total", "Publish calls in which every message failed.", just(float64(t.Refused.Load())))
	}
	if s.parking != nil {
		t := &s.parked
		p.add("counter", "once_reconcile_records_total", "Unknown records by outcome.", outcome("done", &t.Done),
			outcome("freed", &t.Freed), outcome("parked", &t.Parked), outcome("unanswered", &t.Unanswered), outcome("overtaken", &t.Overtaken))
		p.add("counter", "once_reconcile_looks_total", "Passes that have read the whole list.", just(float64(t.Looks.Load())))
		p.add("gauge", "once_unknown_records", "Unknown records in the last pass.", just(float64(t.Unknown.Load())))
		p.add("gauge", "once_unknown_lapsed", "Of these, those whose lease lapsed. An attempt has reported the others.", just(float64(t.Lapsed.Load())))
		p.add("gauge", "once_unknown_orphaned", "Unknown records of operations that are not configured here.", just(float64(t.Orphaned.Load())))
		p.add("gauge", "once_unknown_oldest_seconds", "Time since the oldest became unknown.",
			just(time.Duration(t.Oldest.Load()).Seconds()))
	}
	if s.janitor != nil {
		t := &s.forgotten
		p.add("counter", "once_janitor_forgotten_total", "Deleted items by kind.", kind("key", &t.Keys),
			kind("shelved", &t.Shelved), kind("published", &t.Published), kind("archived", &t.Archived))
		p.add("counter", "once_janitor_looks_total", "Passes that ended with nothing left to delete.", just(float64(t.Looks.Load())))
		p.add("gauge", "once_janitor_behind", "Whether there may be more to delete now.", just(oneIf(t.Behind.Load())))
	}
	return p.String()
}

// depth includes states without messages, because a missing series raises no
// alarm.
func (p *page) depth(all []store.Depth) {
	var depths, ages []series
	for _, state := range []store.OutgoingState{store.Pending, store.Delayed, store.Held, store.Stuck} {
		var of store.Depth
		for _, d := range all {
			if d.State == state {
				of = d
			}
		}
		depths = append(depths, series{"once_state", state.String(), float64(of.Count)})
		ages = append(ages, series{"once_state", state.String(), of.Oldest.Seconds()})
	}
	p.add("gauge", "once_outbox_depth", "Messages in the outbox, estimated from 10,000 on.", depths...)
	p.add("gauge", "once_outbox_oldest_seconds", "Time since the oldest message of a state was put.", ages...)
}

// lag includes all statuses, for the same reason.
func (p *page) lag(lag *store.Lag) {
	var statuses []series
	for _, status := range store.LagStatuses() {
		statuses = append(statuses, series{"once_status", status.String(), oneIf(status == lag.Status)})
	}
	p.add("gauge", "once_outbox_log_lag_bytes", "WAL written since the last position known to be published.", just(float64(lag.Behind)))
	p.add("gauge", "once_outbox_log_retained_bytes", "WAL that the database retains for the reader.", just(float64(lag.Retained)))
	p.add("gauge", "once_outbox_log_active", "Whether a relay reads the log.", just(oneIf(lag.Active)))
	p.add("gauge", "once_outbox_log_status", "Status of the replication slot of the reader.", statuses...)
}
