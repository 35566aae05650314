package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

func sqliteDurability(ctx context.Context, e *examination) error {
	mode, err := e.text(ctx, "PRAGMA journal_mode")
	if err != nil {
		return err
	}
	if mode == "off" || mode == "memory" {
		e.found("journal-mode", Unsafe, "journal_mode is "+mode+".",
			"A crash in the middle of a transaction damages the file.",
			"Open the file with journal_mode WAL or DELETE in your programs.")
	}
	version, err := e.text(ctx, "SELECT sqlite_version()")
	if err != nil {
		return err
	}
	e.found("synchronous-not-seen", Note, "SQLite "+version+" keeps the setting synchronous for each connection.",
		"With NORMAL or OFF, a power loss can undo commits. The setting of your programs cannot be seen from here.",
		"Open the file with _pragma=synchronous(FULL) in your programs.")
	return nil
}

const farApart = time.Second

// clock compares the clocks, as precisely as the round trip allows.
func clock(ctx context.Context, e *examination) error {
	if e.Engine == target.SQLite { // it uses this machine's clock
		return nil
	}
	var distance, exact time.Duration
	for range 3 { // the fastest reply is the most precise
		before := time.Now()
		now, err := e.Now(ctx)
		if err != nil {
			return err
		}
		way := time.Since(before) / 2
		if exact == 0 || way < exact {
			distance, exact = before.Add(way).Sub(now), way
		}
	}
	if distance.Abs() > farApart+exact {
		side := "behind"
		if distance > 0 {
			side = "ahead of"
		}
		e.found("clock", Warning, fmt.Sprintf("This machine's clock is %s %s the database's.", show.Span(distance.Abs()),
			side),
			"Leases are not affected, because they use only the database's clock. Times in logs do not match.",
			"Synchronise both clocks with NTP.")
	}
	return nil
}

const (
	oldUnknown  = time.Hour
	unseen      = time.Hour
	unread      = 5 * time.Minute // consumers register every minute
	oldPending  = 5 * time.Minute
	oldHeld     = 30 * time.Minute
	lateForget  = 24 * time.Hour
	manyExpired = 10_000
	countUpTo   = 1000
)

const (
	maxKeys  = 5_000 // keys of a status to examine at most
	keysTime = 10 * time.Second
)

// each calls f for keys of a status that have not changed for a time. It
// reports whether there may be more. Pages with only running keys are empty.
func each(ctx context.Context, e *examination, status once.Status, unchanged time.Duration, do func(once.Record)) (cut bool, err error) {
	q := once.RecordQuery{Status: []once.Status{status}, Unchanged: unchanged, Limit: countUpTo}
	for n, begun := 0, time.Now(); ; {
		page, next, err := e.List(ctx, q)
		if err != nil {
			return false, err
		}
		for _, r := range page {
			do(r)
		}
		if n += len(page); next == (once.Key{}) || n >= maxKeys || time.Since(begun) > keysTime {
			return next != (once.Key{}), nil
		}
		q.After = next
	}
}

// atLeast returns the prefix of an incomplete count.
func atLeast(cut bool) string {
	if cut {
		return "At least "
	}
	return ""
}

// keys checks unknown and parked keys.
func keys(ctx context.Context, e *examination) error {
	if err := unknown(ctx, e); err != nil {
		return err
	}
	n, operations := 0, map[string]int{}
	units, err := parkedUnits(ctx, e)
	if err != nil {
		return err
	}
	e.Damaged = nil // each list has the same
	cut, err := each(ctx, e, once.Parked, 0, func(r once.Record) {
		if units[r.Key] {
			return
		}
		n++
		operations[r.Key.Operation]++
	})
	if n := len(e.Damaged); err == nil && n > 0 {
		e.found("damaged-records", Unsafe, fmt.Sprintf("%s. The first: %v.", show.Count(n, "record cannot be read", "records cannot be read"), e.Damaged[0]),
			"Calls with these keys fail, and nobody resolves them. All other keys are not affected.",
			"Repair the rows from a backup, or delete one when no repeat can come any more.")
	}
	if err == nil && n > 0 {
		e.found("parked-keys", Warning, fmt.Sprintf("%s%s parked: %s.", atLeast(cut), show.Count(n, "key is", "keys are"),
			commonest(operations)), "They wait for a decision by a person.", "List messages with once parked list, and other keys with once parked keys.")
	}
	return err
}

// parkedUnits returns the keys of parked messages, which are found as messages.
func parkedUnits(ctx context.Context, e *examination) (map[once.Key]bool, error) {
	s, ok := once.As[store.Shelf](e.Store)
	if !ok {
		return nil, nil
	}
	parked, err := s.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: countUpTo, Bodiless: true})
	return store.Units(parked), err
}

func unknown(ctx context.Context, e *examination) error {
	seen, old, oldest, operations := 0, 0, time.Duration(0), map[string]int{}
	cut, err := each(ctx, e, once.Unknown, oldUnknown, func(r once.Record) {
		since := unknownSince(r)
		seen++
		if oldest = max(oldest, since); since > oldUnknown {
			old++
			operations[r.Key.Operation]++
		}
	})
	if err != nil {
		return err
	}
	switch {
	case old > 0:
		e.found("unknown-old", Warning, fmt.Sprintf("%s%s unknown for more than %s, the oldest for %s: %s.", atLeast(cut),
			show.Count(old, "key has been", "keys have been"), show.Span(oldUnknown), show.Span(oldest), commonest(operations)),
			"Nothing resolves them: no reconciler runs for these operations, or it gets no answer.",
			"List them with once unknown list. Configure these operations in the file of once serve ([[reconcile.operation]] or reconcile.park), use package reconcile in a program, or decide each key with once unknown decide.")
	case cut:
		e.found("unknown-many", Note, fmt.Sprintf("There are many unknown keys. None of the %d that were checked is old.", seen),
			"Others may be old.", "List old ones with once unknown list --older-than 1h.")
	}
	if cut { // there are enough to see to
		return nil
	}
	return unknownLately(ctx, e)
}

// unknownLately notes keys that have not been unknown for long: what resolves
// them may be about to.
func unknownLately(ctx context.Context, e *examination) error {
	young, lapsed, oldest, operations := 0, 0, time.Duration(0), map[string]int{}
	cut, err := each(ctx, e, once.Unknown, 0, func(r once.Record) {
		since := unknownSince(r)
		if since > oldUnknown {
			return
		}
		young++
		oldest = max(oldest, since)
		operations[r.Key.Operation]++
		if r.Lapsed() {
			lapsed++
		}
	})
	if err == nil && young > 0 {
		e.found("unknown-young", Note, fmt.Sprintf("%s%s unknown for less than %s, the oldest for %s: %s. The lease of %d lapsed, and %d were reported by their work.",
			atLeast(cut), show.Count(young, "key has been", "keys have been"), show.Span(oldUnknown), show.Span(oldest), commonest(operations), lapsed, young-lapsed),
			"Whether their work happened is not known. A reconciler or the next call may resolve them soon.",
			"If nothing resolves their operations, decide now: once unknown list shows what to search for at the other system.")
	}
	return err
}

// unknownSince returns for how long a record has been unknown. A lapsed lease does
// not count as a change.
func unknownSince(r once.Record) time.Duration {
	if r.LeaseLeft < 0 {
		return -r.LeaseLeft
	}
	return max(r.Age-r.Updated.Sub(r.Created), 0)
}

// commonest returns the names with the highest counts.
func commonest(counts map[string]int) string {
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	var all []string
	for i, name := range names {
		if i == 5 {
			all = append(all, "and others")
			break
		}
		all = append(all, fmt.Sprintf("%s (%d)", show.Line(name), counts[name]))
	}
	return strings.Join(all, ", ")
}

// retention finds tables that no janitor cleans: rows more than a day past
// their retention.
func retention(ctx context.Context, e *examination) error {
	if e.Tables.Partitioned { // partitions are dropped as a whole, later
		return nil
	}
	n, err := e.number(ctx,
		fmt.Sprintf("SELECT count(*) FROM (SELECT 1 AS one FROM %s WHERE due IS NOT NULL AND due < %s - %d LIMIT %d) AS late",
			e.Tables.Names.Table(), e.Tables.Names.Now(), lateForget.Microseconds(), manyExpired))
	if err == nil && n >= manyExpired {
		e.found("forget-behind", Warning, fmt.Sprintf("At least %d keys expired more than %s ago and were not deleted.", n,
			show.Span(lateForget)),
			"No janitor runs, or it does not keep up. The table keeps growing.",
			"Run once serve with a [janitor] section (docs/operating.md), or a janitor.Janitor in a program (docs/guide.md).")
	}
	if err != nil {
		return err
	}
	return keptTooLong(ctx, e)
}

// keptTooLong finds messages that a Janitor with default settings would have
// forgotten.
func keptTooLong(ctx context.Context, e *examination) error {
	for _, of := range []struct {
		id, what, where, since string
		longest                time.Duration
	}{
		{"archive-behind", "messages in the archive of the outbox", e.Tables.Names.OutboxArchive(), "COALESCE(changed, created)", longArchived},
		{"published-behind", "published messages in the outbox", e.Tables.Names.Outbox() + " WHERE state = 4 AND due < " + e.Tables.Names.Now(), "due", longKept},
		{"shelf-behind", "handled and discarded messages on the shelf", e.Tables.Names.Shelf() + " WHERE ended IS NOT NULL", "ended", longKept},
	} {
		join := " WHERE "
		if strings.Contains(of.where, " WHERE ") {
			join = " AND "
		}
		n, err := e.number(ctx, fmt.Sprintf("SELECT count(*) FROM (SELECT 1 AS one FROM %s%s%s < %s - %d LIMIT %d) AS late",
			of.where, join, of.since, e.Tables.Names.Now(), of.longest.Microseconds(), manyExpired))
		if err != nil {
			return err
		}
		if n >= manyExpired {
			e.found(of.id, Warning, fmt.Sprintf("At least %d %s are older than %s.", n, of.what, show.Span(of.longest)),
				"No janitor deletes them. The table keeps growing.", "Run once serve with a [janitor] section (docs/operating.md), or a janitor.Janitor in a program (docs/guide.md).")
		}
	}
	return nil
}

// longArchived and longKept are the default retention of a Janitor, a year and
// 90 days, plus a margin.
const longArchived, longKept = 400 * 24 * time.Hour, 120 * 24 * time.Hour

func shelf(ctx context.Context, e *examination) error {
	s, err := target.Need[store.Shelf](e.Target, target.AShelf)
	if err != nil {
		return err
	}
	parked, err := s.Shelved(ctx, store.ShelfQuery{States: []store.ShelfState{store.Parked}, Limit: countUpTo,
		Bodiless: true})
	if err != nil {
		return err
	}
	parked = slices.DeleteFunc(parked, func(m store.Shelved) bool {
		if m.Seq > 0 {
			return false
		}
		whose := "What lists the consumers with messages"
		if m.Consumer != "" {
			whose = "What lists the messages of " + show.Line(m.Consumer)
		}
		e.found("damaged-shelf", Unsafe, fmt.Sprintf("%s on the shelf cannot be read: %v.", whose, m.Unopened),
			map[bool]string{true: "It begins anew when a message is set aside. Until then, unregistered consumers are not listed.",
				false: "Its messages are neither tried again nor listed. Other consumers are not affected."}[m.Consumer == ""],
			"Repair it from a backup.")
		return true
	})
	if len(parked) == 0 {
		return nil
	}
	consumers := map[string]int{}
	for _, m := range parked {
		consumers[m.Consumer]++
	}
	least := ""
	if len(parked) == countUpTo {
		least = "At least "
	}
	e.found("parked-messages", Warning, fmt.Sprintf("%s%s parked: %s.", least,
		show.Count(len(parked), "message is", "messages are"), commonest(consumers)),
		"They wait for a decision by a person. Later messages with the same ordering keys may wait for them.", "List them with once parked list.")
	return nil
}

func outgoing(ctx context.Context, e *examination) error {
	messages, err := target.Need[store.Relayable](e.Target, target.AnOutbox)
	if err != nil {
		return err
	}
	depth, err := messages.OutboxDepth(ctx, countUpTo)
	if err != nil {
		return err
	}
	leases, err := e.Leases(ctx)
	if err != nil {
		return err
	}
	if leases.Damaged != nil {
		e.found("damaged-leases", Warning, fmt.Sprintf("The leases of relays cannot be read: %v.", leases.Damaged),
			"Relays begin anew, and publish after a minute.", "Nothing, if a relay runs. Look for what else is damaged.")
	}
	failed, found, _ := outbox.Admin{Store: messages}.LastFailure(ctx) // without it, the rest is shown
	last := ""
	if found {
		last = lastFailure(failed)
	}
	waiting := 0
	for _, d := range depth {
		count := show.Count(d.Count, "message is", "messages are")
		if d.Estimated {
			count = "About " + count
		}
		switch {
		case d.State == store.Stuck:
			e.found("outbox-stuck", Warning, fmt.Sprintf("%s stuck in the outbox, the oldest was put %s.", count,
				show.Ago(d.Oldest)),
				"They are not published until a person decides.", "Inspect them with once outbox peek, then run once outbox retry or once outbox discard.")
		case d.State == store.Pending && d.Oldest > oldPending:
			e.found("outbox-behind", Warning, fmt.Sprintf("%s pending, the oldest was put %s.", count,
				show.Ago(d.Oldest)),
				"No relay runs, or it cannot publish.", "Check once outbox status and the log of the relays.")
		case d.State == store.Held:
			severity := Warning
			if d.Oldest <= oldHeld { // the next attempt may succeed
				severity = Note
			}
			e.found("outbox-held", severity, fmt.Sprintf("%s held, the oldest was put %s.%s", count,
				show.Ago(d.Oldest), last),
				"They failed, or wait for an earlier message with the same ordering key that failed.", "Inspect them with once outbox peek --state held.")
		}
		if d.State == store.Pending || d.State == store.Held || d.State == store.Delayed {
			waiting += d.Count
		}
	}
	if found && failed.State == store.Pending {
		e.found("outbox-refused", Warning, "Nothing gets through to the broker."+last,
			"All messages wait. Relays go on trying, and blame none of them.",
			"Mend the broker, or the configuration of the relays. Then everything is published by itself.")
	}
	if waiting > 0 && leases.Relays == 0 {
		e.found("outbox-no-relay", Warning, fmt.Sprintf("No relay is running, and %s.", show.Count(waiting, "message waits", "messages wait")),
			"Nothing is published.", "Start a relay: once serve (docs/operating.md), or outbox.Relay in a program (docs/publishing.md).")
	}
	return nil
}

// lastFailure is a sentence about the last error of a relay.
func lastFailure(m store.Outgoing) string {
	when := " The last failure, " + show.Ago(time.Since(m.Changed))
	if m.State == store.Pending {
		return fmt.Sprintf("%s: %s.", when, show.Short(m.Reason))
	}
	return fmt.Sprintf("%s, was of message %s to %s: %s.", when, show.Quote(m.Message.ID), show.Line(m.Message.Topic), show.Short(m.Reason))
}

func consumers(ctx context.Context, e *examination) error {
	registry, err := target.Need[store.Registry](e.Target, target.ARegistry)
	if err != nil {
		return err
	}
	all, err := registry.Consumers(ctx)
	if err != nil {
		return err
	}
	if err := damagedConsumers(ctx, e, all); err != nil {
		return err
	}
	seen := make(map[string]time.Duration) // at any of its sources, since it may have moved
	for _, c := range all {
		if c.Damaged != nil || store.IsRetired(all, c.Name) {
			continue
		}
		if last, ok := seen[c.Name]; !ok || c.Seen < last {
			seen[c.Name] = c.Seen
		}
	}
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if seen[name] > unseen {
			gone = append(gone, fmt.Sprintf("%s (%s)", show.Line(name), show.Ago(seen[name])))
		}
	}
	if len(gone) > 0 {
		e.found("consumers-unseen", Warning, "Not seen for more than "+show.Span(unseen)+": "+strings.Join(gone, ", ")+".",
			"They are not running, and their messages accumulate at the broker; or they are gone for good.",
			"Start them. If they are gone for good: once consumers retire.")
	}
	return nil
}

// damagedConsumers finds rows of consumers that cannot be read, and positions of the
// others.
func damagedConsumers(ctx context.Context, e *examination, all []store.Consumer) error {
	positions, kept := once.As[consumerStore](e.Store)
	asked := make(map[string]bool) // by the name in their keys
	for _, c := range all {
		if c.Damaged != nil {
			e.found("damaged-consumers", Unsafe, fmt.Sprintf("A consumer cannot be read: %v.", c.Damaged),
				"What is published through this store to its topic, or to any if that is not known, waits. It does not start, and others of a new name do not either.",
				"Repair its row, as the message says.")
		}
		if !c.IsLegible() || !kept || asked[c.Keys] || store.IsRetired(all, c.Name) {
			continue
		}
		asked[c.Keys] = true
		places, err := positions.Positions(ctx, c.Keys)
		if err != nil {
			return err
		}
		for _, p := range places {
			if p.Damaged != nil {
				e.found("damaged-positions", Unsafe, fmt.Sprintf("A position of %s cannot be read: %v.", show.Line(c.Name), p.Damaged),
					"The messages of this partition wait. Other partitions are not affected.",
					"Set the position with inbox.Admin.SetPosition, as the message says.")
			}
		}
	}
	return nil
}
