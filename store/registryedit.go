package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// RegistryEditor changes the names in a [Registry]. People do that, with
// inbox.Admin. Without it, a program renames its consumer by Consumer.RenamedFrom,
// and none can be retired.
//
// What a consumer keeps is stored under its Keys: the keys of its messages, its
// positions, and its messages on the shelf. A name only leads to them. So a change
// of the name moves nothing of that, and processes with the old and the new name
// recognise each other's work.
type RegistryEditor interface {
	// RenameConsumer gives all rows of a name another name, in one transaction, and
	// those of its rebuilds too: from@2 becomes to@2. Source, Keys and the time of
	// the last Register stay. If to has a row at the same source, the two become one,
	// with the later time. A caller that is at work as from may register again under
	// that name, with the Keys that it has.
	//
	//	from is not registered             ErrNoConsumer
	//	from is to, or one is retired      ErrConsumerState
	//	to is registered with other Keys   ErrConsumerState
	//	a damaged row may be one of them   once.ErrCorrupt
	RenameConsumer(ctx context.Context, from, to string) error

	// RetireConsumer replaces the rows of a name by one, in one transaction. Its
	// Source is r.As, so that Register refuses the name at any source that does not
	// share with r.As. Name, Keys and the time of the last Register stay. Each
	// position under these Keys gets a higher Epoch and the Log [RetiredLog], and
	// keeps its Offset. One without a Log keeps none, because nothing was dealt with
	// there and no Offset would say so.
	//
	//	the name is not registered                  ErrNoConsumer
	//	it is retired with the same As              returns nil: the reply was lost
	//	it is retired with another As               ErrConsumerState
	//	it was seen within r.Silence                ErrConsumerState
	//	another name has its Keys, and is not retired
	//	                                            ErrConsumerState
	//	it has Waiting or Parked messages on the    ErrShelfInUse
	//	shelf, or in its queue, unless r.Queued
	//	a row or a position of it is damaged, or    once.ErrCorrupt
	//	a row that may be of another name of it
	RetireConsumer(ctx context.Context, r Retirement) error
}

// Retirement has the arguments of RetireConsumer.
type Retirement struct {
	Name    string
	As      string        // by [RetiredSource]
	Silence time.Duration // how long ago the consumer must have been seen last

	// Queued lets its queue have messages: see [QueueOf]. Publishers put more into it
	// until it is retired, so whoever gives them up does that afterwards.
	Queued bool
}

var (
	// ErrNoConsumer is returned when a consumer is not registered.
	ErrNoConsumer = errors.New("store: no consumer with this name is registered")

	// ErrConsumerState is returned when a consumer is in a state in which it cannot
	// be renamed or retired. Nothing was changed.
	ErrConsumerState = errors.New("store: the consumer was left as it is")

	// ErrShelfInUse is the ErrConsumerState of RetireConsumer if the consumer has
	// Waiting or Parked messages on the shelf or in its queue.
	ErrShelfInUse = fmt.Errorf("%w: messages of it are on the shelf or in its queue that were not handled. Discard them, or have them handled, first", ErrConsumerState)
)

// RetiredLog is the Log of the positions of a retired consumer. No log has this
// name, so a process that still has the consumer, or starts it again, stops
// instead of reading on.
const RetiredLog = "(retired)"

// retiredName is the name of the source of a retired consumer.
const retiredName = "(retired)"

// RetiredSource returns the source of a consumer that was retired. It says when, by
// whom, and why, as far as there is room.
func RetiredSource(at time.Time, by, why string) string {
	facts := map[string]string{"at": at.UTC().Format(time.RFC3339Nano), "by": by, "why": why}
	for _, least := range []string{"why", "by"} {
		for facts[least] != "" && sourceIsFull(facts) {
			runes := []rune(facts[least])
			facts[least] = string(runes[:len(runes)-1])
		}
	}
	return SourceText(retiredName, facts)
}

func sourceIsFull(facts map[string]string) bool {
	_, kept, _ := splitSource(SourceText(retiredName, facts))
	return kept == nil
}

// RetiredAt reports whether a source is that of a retired consumer, and returns
// when, by whom and why it was retired, as far as that was kept.
func RetiredAt(source string) (at time.Time, by, why string, ok bool) {
	name, facts := SplitSource(source)
	if name != retiredName {
		return at, "", "", false
	}
	at, _ = time.Parse(time.RFC3339Nano, facts["at"])
	return at, facts["by"], facts["why"], true
}

// IsRetired reports whether the name of rows of a registry is retired: it has rows,
// and all are those of a retired consumer.
func IsRetired(rows []Consumer, name string) bool {
	found := false
	for _, c := range rows {
		if c.Name != name {
			continue
		}
		if _, _, _, ok := RetiredAt(c.Source); !ok {
			return false
		}
		found = true
	}
	return found
}

// ConsumerStateError returns an [ErrConsumerState] that says what to do.
func ConsumerStateError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConsumerState, fmt.Sprintf(format, args...))
}

// RegistryRow is a row of a registry, as a store that edits it reads and writes it.
type RegistryRow struct {
	Consumer
	At int64 // when it last registered, in a unit of the store
}

// RenameRows decides what RenameConsumer does. rows has those of the whole
// registry, of each name the first one first. The rows of the names in gone are
// deleted, and then those in after are written in their order.
func RenameRows(rows []RegistryRow, from, to string) (gone []string, after []RegistryRow, err error) {
	if from == to {
		return nil, nil, ConsumerStateError("%q has this name", from)
	}
	renamed := RenamedNames(rows, from, to)
	for _, row := range rows {
		if row.Damaged == nil {
			continue
		}
		touched := row.Name == "" || row.Name == to
		for old, name := range renamed {
			touched = touched || row.Name == old || row.Name == name
		}
		if touched {
			return nil, nil, fmt.Errorf("store: %q was not renamed: %w", from, row.Damaged)
		}
	}
	if _, ok := renamed[from]; !ok {
		return nil, nil, fmt.Errorf("%w: %q", ErrNoConsumer, from)
	}
	consumers := make([]Consumer, len(rows))
	for i, row := range rows {
		consumers[i] = row.Consumer
	}
	for old, name := range renamed {
		gone = append(gone, old, name)
		for _, one := range []string{old, name} {
			if IsRetired(consumers, one) {
				return nil, nil, ConsumerStateError("%q is retired", one)
			}
		}
		var merged []RegistryRow
		for _, of := range []string{name, old} { // the first source of the new name stays the first
			for _, row := range rows {
				if row.Name != of {
					continue
				}
				if len(merged) > 0 && merged[0].Keys != row.Keys {
					return nil, nil, ConsumerStateError("%q is registered already, with the keys of %q, and %q has those of %q. "+
						"Each has handled messages that the other does not know of, so they cannot become one: choose another name", name, merged[0].Keys, old, row.Keys)
				}
				row.Name = name
				merged = mergeRow(merged, row)
			}
		}
		after = append(after, merged...)
	}
	return gone, after, nil
}

// mergeRow adds a row to those of its name.
func mergeRow(rows []RegistryRow, row RegistryRow) []RegistryRow {
	for i := range rows {
		if both, ok := MatchSource(rows[i].Source, row.Source); ok {
			rows[i].Source, rows[i].At = both, max(rows[i].At, row.At)
			return rows
		}
	}
	return append(rows, row)
}

// RenamedNames returns the registered names that a RenameConsumer changes, each
// with what it becomes: from, and those of its rebuilds.
func RenamedNames(rows []RegistryRow, from, to string) map[string]string {
	names := make(map[string]string)
	for _, row := range rows {
		if rebuild, ok := strings.CutPrefix(row.Name, from); ok && (rebuild == "" || rebuild[0] == '@') {
			names[row.Name] = to + rebuild
		}
	}
	return names
}

// RetireRows decides what RetireConsumer does, except about the shelf. rows has
// those of the whole registry. The rows of r.Name are deleted, and then after is
// written. done is true if that was done before, and nothing is left to do.
func RetireRows(rows []RegistryRow, r Retirement) (after RegistryRow, done bool, err error) {
	var own []Consumer
	for _, row := range rows {
		if row.Name == r.Name {
			if len(own) == 0 || row.At > after.At {
				after = row
			}
			own = append(own, row.Consumer)
		}
	}
	for _, row := range rows {
		if row.Damaged != nil && (row.Name == r.Name || row.Name == "" || row.Keys == "" || row.Keys == after.Keys) {
			return after, false, fmt.Errorf("store: %q was not retired: %w", r.Name, row.Damaged)
		}
	}
	after.Source = r.As
	switch {
	case len(own) == 0:
		return after, false, fmt.Errorf("%w: %q", ErrNoConsumer, r.Name)
	case IsRetired(own, r.Name) && own[0].Source == r.As:
		return after, true, nil
	case IsRetired(own, r.Name):
		return after, false, ConsumerStateError("%q is retired already", r.Name)
	}
	for _, row := range rows {
		_, _, _, retired := RetiredAt(row.Source)
		switch {
		case row.Keys != after.Keys || retired:
		case row.Name != r.Name:
			return after, false, ConsumerStateError("%q and %q are names of one consumer, with the keys of %q. To take this name away, rename it to the other one", r.Name, row.Name, row.Keys)
		case row.Seen < r.Silence:
			return after, false, ConsumerStateError("%q is at work: it was seen %v ago at %q, and every minute it says that it is. Stop all its processes, and wait until %v have passed",
				r.Name, row.Seen.Round(time.Second), row.Source, r.Silence)
		}
	}
	return after, false, nil
}
