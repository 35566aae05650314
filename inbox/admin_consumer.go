package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store"
)

// ConsumerChange is what Rename or Retire changes, or would change.
type ConsumerChange struct {
	Name string
	Keys string           // the name in the keys of its messages, which stays
	Rows []store.Consumer // of the registry that go, at each source; of Rename, with those of rebuilds
	Into []store.Consumer // of Rename: those of the new name, which these join; usually none

	Seen      time.Duration    // since a process of it, under any name, was last at work
	Positions []store.Position // under Keys: they stay with Rename, and end with Retire
	Waiting   int              // messages on the shelf, and in its queue in the store, up to 1,000
	Parked    int              // and those of them that wait for a person, up to 1,000

	Discarded Tally // of Retire: what became of these messages
}

// Rename gives a consumer another name, and its rebuilds too, in one transaction of
// the store. Then deploy the program with that name.
//
// A name only leads to what the consumer keeps: the keys of its messages, its
// positions and its messages on the shelf are all under Keys, which stays. So
// nothing is handled again or lost, whatever is running meanwhile. Processes with
// the old name go on, and recognise the work of those with the new name. They are
// listed under the old name again until they end; repeat Rename then.
//
// It returns [store.ErrNoConsumer] if from is not registered, and
// [store.ErrConsumerState] if the new name is another consumer's, or one of them
// is retired. If the store cannot rename, it returns errors.ErrUnsupported.
func (d Admin) Rename(ctx context.Context, from, to string, by Decision) (ConsumerChange, error) {
	editor, err := d.editor("rename a consumer, set RenamedFrom in its program")
	switch {
	case err != nil:
		return ConsumerChange{}, err
	case by.By == "" || by.Reason == "":
		return ConsumerChange{}, errAnonymous
	case !isPlain(from) || !isPlain(to):
		return ConsumerChange{}, invalid("the name %.40q or %.40q has a slash or an @: name the consumer itself, and its rebuilds follow", from, to)
	case to == "" || len(to) > name.Limit-len(countSuffix):
		return ConsumerChange{}, invalid("the new name has %d bytes: use 1 to %d", len(to), name.Limit-len(countSuffix))
	case name.Check("new name", to) != nil:
		return ConsumerChange{}, invalid("%v", name.Check("new name", to))
	}
	rows, err := d.registry(ctx)
	if err != nil {
		return ConsumerChange{}, err
	}
	if _, _, err := store.RenameRows(rows, from, to); err != nil {
		return ConsumerChange{}, err
	}
	c, err := d.consumer(ctx, rows, from)
	if err != nil || by.DryRun {
		return withNew(c, rows, from, to), err
	}
	err = d.repeatEdit(ctx, func(again bool) error {
		err := editor.RenameConsumer(ctx, from, to)
		if again && errors.Is(err, store.ErrNoConsumer) && d.hasKeys(ctx, to, c.Keys) {
			return nil // the reply to the call before was lost
		}
		return err
	})
	return withNew(c, rows, from, to), err
}

// withNew adds the rows of rebuilds, and those of the new name.
func withNew(c ConsumerChange, rows []store.RegistryRow, from, to string) ConsumerChange {
	names := store.RenamedNames(rows, from, to)
	c.Rows = nil
	for _, row := range rows {
		if _, ok := names[row.Name]; ok {
			c.Rows = append(c.Rows, row.Consumer)
		}
		if row.Name == to {
			c.Into = append(c.Into, row.Consumer)
		}
	}
	return c
}

func (d Admin) hasKeys(ctx context.Context, called, keys string) bool {
	rows, err := d.registry(ctx)
	for _, row := range rows {
		if row.Name == called {
			return err == nil && row.Keys == keys
		}
	}
	return false
}

// RetireSilence is how long a consumer must have been silent before it can be
// retired. One at work registers every minute.
const RetireSilence = 5 * time.Minute

// Retire takes a consumer out of use whose processes have ended for good. Stop them
// first: it is refused with [store.ErrConsumerState] if one was at work in the last
// five minutes, if the consumer has another name as well, or, with
// [store.ErrShelfInUse], if it has messages on the shelf or in its queue. With
// discard, these are given up, those that wait for another attempt as well as those
// that are parked: see Discard. A message that a relay was putting into the queue
// meanwhile may be left there, for nobody. The same call gives it up, and returns
// [store.ErrConsumerState] because the consumer is retired.
//
// What remains is one row, which keeps the name. If the consumer is started again,
// Run returns an error that says when, by whom and why it was retired. It also
// names the SharedWith with which the consumer is to continue: with its old keys,
// so that what it has handled stays handled as long as its keys are kept. Its
// positions are ended, and are not read on from until a person sets each with
// SetPosition. They still have the offset where the consumer was. A partition of
// which it had handled nothing has none, and begins anew.
//
// Another consumer may then have the source. Keys are forgotten when their time
// has come, as always. Unknown keys of the consumer stay listed until somebody
// decides about them.
//
// The retirement itself is one transaction of the store. If Retire is interrupted
// while it discards, the same call does the rest. If the store cannot retire
// consumers, it returns errors.ErrUnsupported.
func (d Admin) Retire(ctx context.Context, called string, discard bool, by Decision) (ConsumerChange, error) {
	editor, err := d.editor("retire a consumer, stop its processes")
	switch {
	case err != nil:
		return ConsumerChange{}, err
	case by.By == "" || by.Reason == "":
		return ConsumerChange{}, errAnonymous
	}
	rows, err := d.registry(ctx)
	if err != nil {
		return ConsumerChange{}, err
	}
	r := store.Retirement{Name: called, As: store.RetiredSource(time.Now(), by.By, by.Reason), Silence: RetireSilence, Queued: discard}
	c, err := d.consumer(ctx, rows, called)
	if err != nil {
		return c, err
	}
	queue := store.QueueOf(c.Keys)
	if _, _, err := store.RetireRows(rows, r); err != nil {
		if discard && areRetired(rows, c.Keys) {
			err = errors.Join(err, d.giveUp(ctx, &c, by, queue))
		}
		return c, err
	}
	if err := store.Corrupt(c.Positions); err != nil { // before anything is given up
		return c, err
	}
	if c.Waiting+c.Parked > 0 && !discard {
		return c, fmt.Errorf("%w: %q", store.ErrShelfInUse, called)
	}
	if discard {
		if err := d.giveUp(ctx, &c, by, c.Keys, queue); err != nil {
			return c, err
		}
	}
	if by.DryRun {
		return c, nil
	}
	err = d.repeatEdit(ctx, func(bool) error { return editor.RetireConsumer(ctx, r) })
	if err != nil || !discard {
		return c, err
	}
	return c, d.giveUp(ctx, &c, by, queue) // what came until it was retired
}

// giveUp discards what a consumer has on the shelf and in its queue.
func (d Admin) giveUp(ctx context.Context, c *ConsumerChange, by Decision, from ...string) error {
	for _, consumer := range from {
		t, err := d.discard(ctx, store.ShelfQuery{Consumer: consumer}, []store.ShelfState{store.Waiting, store.Parked}, by)
		c.Discarded.add(t)
		if err != nil {
			return err
		}
	}
	return nil
}

// areRetired reports whether all consumers with these keys, under all names, are
// retired.
func areRetired(rows []store.RegistryRow, keys string) bool {
	found := false
	for _, row := range rows {
		if row.Keys != keys {
			continue
		}
		if _, _, _, found = store.RetiredAt(row.Source); !found {
			return false
		}
	}
	return found
}

var errAnonymous = invalid("a decision needs By and Reason: who decides, and why")

// editor returns the registry of the store, if it can be edited.
func (d Admin) editor(instead string) (store.RegistryEditor, error) {
	editor, ok := once.As[store.RegistryEditor](d.Store)
	if !ok {
		return nil, fmt.Errorf("inbox: %w: %T cannot rename or retire consumers. To %s", errors.ErrUnsupported, d.Store, instead)
	}
	return editor, nil
}

func (d Admin) registry(ctx context.Context) (rows []store.RegistryRow, err error) {
	registry, ok := once.As[store.Registry](d.Store)
	if !ok {
		return nil, fmt.Errorf("inbox: %w: %T has no registry of consumers", errors.ErrUnsupported, d.Store)
	}
	return registryRows(ctx, registry)
}

func registryRows(ctx context.Context, registry store.Registry) (rows []store.RegistryRow, err error) {
	all, err := registry.Consumers(ctx)
	for _, c := range all {
		rows = append(rows, store.RegistryRow{Consumer: c, At: -int64(c.Seen)})
	}
	return rows, err
}

// consumer returns what a consumer has.
func (d Admin) consumer(ctx context.Context, rows []store.RegistryRow, called string) (c ConsumerChange, err error) {
	c.Name = called
	for _, row := range rows {
		if row.Name == called {
			c.Rows, c.Keys = append(c.Rows, row.Consumer), row.Keys
		}
	}
	if len(c.Rows) == 0 {
		return c, fmt.Errorf("%w: %q", store.ErrNoConsumer, called)
	}
	c.Seen = c.Rows[0].Seen
	for _, row := range rows {
		if row.Keys == c.Keys {
			c.Seen = min(c.Seen, row.Seen)
		}
	}
	if c.Positions, err = d.Store.Positions(ctx, c.Keys); err != nil {
		return c, err
	}
	for state, count := range map[store.ShelfState]*int{store.Waiting: &c.Waiting, store.Parked: &c.Parked} {
		for _, consumer := range []string{c.Keys, store.QueueOf(c.Keys)} {
			q := store.ShelfQuery{Consumer: consumer, States: []store.ShelfState{state}, Limit: largestPage, Bodiless: true}
			found, err := d.Store.Shelved(ctx, q)
			if err != nil {
				return c, err
			}
			*count = min(*count+len(found), largestPage)
		}
	}
	return c, nil
}

const editTries = 3

// repeatEdit repeats an edit of the registry whose reply was lost, or that met
// another one. Editing twice does no harm.
func (d Admin) repeatEdit(ctx context.Context, edit func(again bool) error) error {
	for try := 1; ; try++ {
		err := edit(try > 1)
		if err == nil || try == editTries || ctx.Err() != nil ||
			errors.Is(err, store.ErrConsumerState) || errors.Is(err, store.ErrNoConsumer) || errors.Is(err, once.ErrInvalid) {
			return err
		}
	}
}
