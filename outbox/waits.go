package outbox

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/effectively-once/once/store"
)

// waits is what a relay knows of relays whose lanes it waits for, to say so in the
// log.
type waits struct {
	others map[[16]byte]*other
	said   bool // that it has no lane
}

// other is another relay that leases lanes.
type other struct {
	lanes    []int
	ends     time.Time     // when the last of its leases lapses
	renewed  time.Time     // when they were last seen to be renewed
	patience time.Duration // after which a relay that renews its leases would have done so
	said     bool
}

// see looks for relays that do not renew their leases. wants is whether this relay
// has fewer lanes than its share.
func (w *waits) see(e *env, leases store.Leases, wants bool) {
	ctx, now := context.Background(), time.Now()
	mine, lanes := false, make(map[[16]byte][]int)
	ends := make(map[[16]byte]time.Time)
	for i, lane := range leases.Lanes {
		mine = mine || lane.Relay == e.me()
		if lane.Left <= 0 || lane.Relay == e.me() {
			continue
		}
		lanes[lane.Relay] = append(lanes[lane.Relay], i)
		if end := now.Add(lane.Left); end.After(ends[lane.Relay]) {
			ends[lane.Relay] = end
		}
	}
	for relay, o := range w.others {
		if len(lanes[relay]) > 0 {
			continue
		}
		delete(w.others, relay)
		if o.said {
			e.Logger.InfoContext(ctx, "outbox: the lanes of the other relay are free", "relay", hex.EncodeToString(relay[:]),
				"lanes", o.lanes, "after", now.Sub(o.renewed).Round(time.Millisecond))
		}
	}
	for relay, end := range ends {
		o := w.others[relay]
		if o == nil {
			// Leases are renewed six times as often as they would lapse.
			o = &other{ends: end, renewed: now, patience: max(e.Lease/3, time.Until(end)/4)}
			if w.others == nil {
				w.others = make(map[[16]byte]*other)
			}
			w.others[relay] = o
		}
		if end.Sub(o.ends) > e.Lease/50 { // more than what clocks and delays differ by
			o.ends, o.renewed, o.said = end, now, false
		}
		o.lanes = lanes[relay]
		if wants && !o.said && now.Sub(o.renewed) >= o.patience {
			o.said = true
			e.Logger.WarnContext(ctx, "outbox: waiting for the lanes of another relay, which no longer renews its leases", "relay", hex.EncodeToString(relay[:]), "lanes", o.lanes,
				"silent", now.Sub(o.renewed).Round(time.Millisecond), "free_in", time.Until(o.ends).Round(time.Millisecond))
		}
	}
	if mine || !wants || w.said {
		w.said = w.said && !mine
		return
	}
	if len(ends) > 0 {
		w.said = true
		for relay, end := range ends {
			e.Logger.InfoContext(ctx, "outbox: waiting for lanes, which another relay has. It gives some of them up, or its leases lapse",
				"relay", hex.EncodeToString(relay[:]), "lanes", lanes[relay], "free_in", time.Until(end).Round(time.Millisecond))
		}
	}
}
