package inbox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store"
)

// consumerRun is one Run of a consumer: its settings with their defaults, and what is known of its past.
type consumerRun struct {
	*Consumer
	store  once.Store
	logger *slog.Logger
	shape  shape
	shelf  store.Shelf // nil: the store has none
	keys   string      // the operation of its keys

	source atomic.Pointer[string] // the text of the source, with what is known of where it is
	placed bool                   // that is all that the broker tells
	floor  *floor

	transact func(context.Context, []once.ClaimRequest, func([]once.Record) ([]once.Settlement, error)) ([]once.Record, error) // nil: of Do

	single  bool        // messages are handled one by one
	keyed   bool        // each message has a key
	effects bool        // handlers act outside the database
	fatal   func(error) // ends the run
	begun   time.Time   // the run
	since   time.Time   // what was produced later cannot have been handled before this run; zero: not known
}

// shape is what differs between the shapes of handlers.
type shape interface {
	// prepare is called once, when the name of the keys is known.
	prepare()

	// handle deals with items that were taken together, and returns a result for each.
	handle(ctx context.Context, items []*item) []result

	// handleShelved handles a message that was on the shelf, and changes it to Handled in the same commit where that is
	// possible: it reports whether the shelf is still to be changed. Without an error it is handled, prevented or a duplicate.
	handleShelved(ctx context.Context, it *item, m store.Shelved) (became resultKind, left bool, err error)

	// newSession forgets what was known of positions. Where a partition has to be read again, it is asked for of k.
	newSession(k *seeks)
}

// newShiftOf fills in what all shapes of handlers share.
func (c *Consumer) newShiftOf(st once.Store, together bool) (*consumerRun, error) {
	if st == nil || st.Options() == nil {
		return nil, invalid("the store of consumer %q is nil, or has no Options", c.Name)
	}
	c.finish(together)
	c.Policy.Lease = cmp.Or(c.Policy.Lease, 30*time.Second)
	c.Policy.KeepOutcome = cmp.Or(c.Policy.KeepOutcome, 3*24*time.Hour)
	c.Policy.KeepKey = cmp.Or(c.Policy.KeepKey, max(30*24*time.Hour, c.Policy.KeepOutcome))
	keyed := !c.Checkpoint || c.Key != nil
	if c.Key == nil {
		c.Key = func(m *broker.Message) (string, error) { return m.ID, nil }
	}
	if c.OrderBy == nil {
		c.OrderBy = func(m *broker.Message) string { return m.OrderingKey }
	}
	if c.Input == nil {
		c.Input = func(m *broker.Message) []byte { return m.Body }
	}
	s := &consumerRun{Consumer: c, store: st, logger: st.Options().Logger.With("consumer", c.Name), single: !together, keyed: keyed,
		begun: time.Now(), floor: newFloor()}
	s.keys = s.named(c.Name)
	s.setSource(nil)
	if err := st.Options().Sealing.Validate(); err != nil {
		return nil, err
	}
	if shelf, ok := once.As[store.Shelf](st); ok {
		s.shelf = sealedShelf{shelf, &st.Options().Sealing}
	}
	return s, nil
}

// named is the operation of keys and the name of positions, of a consumer of that name.
func (c *Consumer) named(consumer string) string {
	if c.Rebuild == "" {
		return consumer
	}
	return consumer + "@" + c.Rebuild
}

func (s *consumerRun) setSource(facts map[string]string) {
	text := store.SourceText(s.Source.Name(), facts)
	s.source.Store(&text)
}

// me is the consumer as it is registered.
func (s *consumerRun) me(keys string) store.Consumer {
	return store.Consumer{Name: s.named(s.Name), Source: *s.source.Load(), Keys: keys, SharedWith: s.SharedWith}
}

const signOfLife = time.Minute

// register makes sure that a new name is not an old consumer by mistake, and finds out what its keys are named by.
func (s *consumerRun) register(ctx context.Context) error {
	registry, ok := once.As[store.Registry](s.store)
	if !ok {
		return nil
	}
	unplaced := s.place(ctx)
	me := s.me("")
	all, err := registry.Consumers(ctx)
	if err == nil && unplaced != nil && !slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Name == me.Name }) {
		err = unplaced // a new name needs all that can be known of its source, and has nothing on the shelf
	}
	if err == nil {
		err = s.findKeys(&me, all)
	}
	begun := time.Now()
	var before store.Consumer
	if err == nil {
		before, err = registry.Register(ctx, me)
	}
	switch {
	case err != nil:
		return fmt.Errorf("inbox: consumer %q could not be registered: %w", s.Name, err)
	case before.Name != "" && !sameSource(before.Source, me.Source):
		return s.elsewhere(before, me)
	case before.Name == "" && me.Keys == me.Name:
		s.keys, s.since = me.Name, time.Unix(1, 0) // nothing was ever handled by it
	case before.Name == "":
		s.keys = me.Keys // and when it was at work by its name of then is not known
	default:
		s.keys = before.Keys
		for _, c := range all { // what came from one source was not handled from another later than that
			if c.Name == me.Name {
				before.Seen = min(before.Seen, c.Seen)
			}
		}
		s.since = begun.Add(-before.Seen).Add(signOfLife + clockTolerance)
	}
	return nil
}

// place asks the broker where the source is.
func (s *consumerRun) place(ctx context.Context) error {
	source, ok := s.Source.(broker.Located)
	if s.placed || !ok {
		s.placed = true
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	facts, err := source.Location(ctx)
	if err != nil {
		return fmt.Errorf("the broker does not tell where %s is: %w", s.Source.Name(), err)
	}
	s.setSource(facts)
	s.placed = true
	return nil
}

// confirm registers the source with all that its broker tells, if the broker could not be asked when the consumer was
// registered.
func (s *consumerRun) confirm(ctx context.Context) error {
	registry, ok := once.As[store.Registry](s.store)
	if !ok || s.placed {
		return nil
	}
	if err := s.place(ctx); err != nil {
		return err
	}
	me := s.me("")
	all, err := registry.Consumers(ctx)
	if err == nil {
		err = s.findKeys(&me, all)
	}
	var before store.Consumer
	if err == nil {
		before, err = registry.Register(ctx, me)
	}
	switch {
	case err != nil:
		s.placed = false
		return fmt.Errorf("inbox: consumer %q could not be registered: %w", s.Name, err)
	case !sameSource(before.Source, me.Source):
		return s.elsewhere(before, me)
	}
	return nil
}

// elsewhere is the error of a name that is used at another source.
func (s *consumerRun) elsewhere(there, me store.Consumer) error {
	return invalid("the name %q belongs to the consumer of the source %q, and this one is at %q: with one name and one store, each would "+
		"take the messages of the other for duplicates. If it is another service, give it another name. If the same messages come from both, "+
		"because the consumer has moved, its broker was renamed, or they come from two brokers, say SharedWith: %q", s.Name, there.Source, me.Source, there.Source)
}

func sameSource(a, b string) bool {
	_, ok := store.MatchSource(a, b)
	return ok
}

// findKeys fills in the Keys that a consumer goes on with.
func (s *consumerRun) findKeys(me *store.Consumer, all []store.Consumer) error {
	seen := time.Duration(math.MaxInt64) // never
	for _, c := range all {
		if c.Name == me.Name {
			me.Keys, seen = c.Keys, min(seen, c.Seen)
		} else if s.RenamedFrom != "" && c.Name == s.named(s.RenamedFrom) && me.Keys == "" {
			me.Keys = c.Keys
		}
	}
	if me.Keys == "" && s.RenamedFrom != "" && s.Rebuild == "" {
		return invalid("it is renamed from %q, which was never at the source %q", s.RenamedFrom, me.Source)
	}
	me.Keys = cmp.Or(me.Keys, me.Name)
	for _, c := range all {
		same := sameSource(c.Source, me.Source)
		switch {
		case c.Keys != me.Keys && same && s.placed && plain(c.Name) && s.Rebuild == "":
			return invalid("the source %q was consumed by %q: if this is the same consumer with a new name, say RenamedFrom: %q, "+
				"or everything would be handled again; if it is another one, give it a source of its own", me.Source, c.Name, c.Name)
		case c.Keys == me.Keys && !same && !sameSource(c.Source, s.SharedWith) && c.Name != me.Name && c.Seen < seen:
			return invalid("its keys belong to consumer %q at the source %q, which had this name before, and this one is at %q. If it is another "+
				"consumer, call it something else. If it is the same one, which has moved, or the same messages come from both, say "+
				"SharedWith: %q", c.Name, c.Source, me.Source, c.Source)
		}
	}
	return nil
}

// clockTolerance is how far the clocks of producers may be ahead of the store's.
const clockTolerance = 10 * time.Minute

// stayAlive gives the sign of life until ctx ends.
func (s *consumerRun) stayAlive(ctx context.Context) {
	registry, ok := once.As[store.Registry](s.store)
	if !ok {
		return
	}
	for backoff.Sleep(ctx, signOfLife) == nil {
		_, err := registry.Register(ctx, s.me(s.keys))
		if err != nil && ctx.Err() == nil {
			s.logger.WarnContext(ctx, "inbox: the sign of life could not be written", logs.Spaced(""), "error", err)
		}
	}
}

// checkHorizon refuses keys that are forgotten before a message comes for the last time.
func (s *consumerRun) checkHorizon(ctx context.Context) error {
	source, ok := s.Source.(broker.Horizon)
	if !ok || !s.keyed {
		return nil
	}
	horizon, err := source.RedeliveryHorizon(ctx)
	switch {
	case err != nil:
		s.logger.WarnContext(ctx, "inbox: how long messages can come again could not be read", logs.Spaced(""), "error", err)
	case horizon > s.Policy.KeepKey:
		return invalid("consumer %q remembers keys for %v, but %s can deliver a message again after %v: raise Policy.KeepKey",
			s.Name, s.Policy.KeepKey, s.Source.Name(), horizon)
	}
	return nil
}

// tooOld reports whether a message may have been handled so long ago that its key is forgotten: before this run, or in
// it, when that has gone on for longer than keys are kept.
func (s *consumerRun) tooOld(it *item) bool {
	made, keep := it.Message.Time, s.Policy.KeepKey
	return !made.IsZero() && time.Since(made) > keep && (s.since.IsZero() || made.Before(s.since) || time.Since(s.begun) > keep)
}

// context is what handlers get.
func (s *consumerRun) context(ctx context.Context) context.Context {
	if s.Rebuild != "" {
		return scope.NoEffects(ctx)
	}
	return ctx
}
