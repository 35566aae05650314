package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/logs"
	"github.com/effectively-once/once/store"
)

const (
	signOfLifeEvery = time.Minute
	clockTolerance  = 10 * time.Minute // how far the clocks of producers may be ahead of the store's
)

// registration keeps a consumer in the store's registry. It prevents a name from
// being used for two sources, and finds out what the consumer's keys are called.
type registration struct {
	*env
	registry store.Registry // nil: the store has none
	source   atomic.Pointer[string]
	located  bool // source has all that the broker tells about where it is
}

func newRegistration(e *env) *registration {
	r := &registration{env: e}
	r.registry, _ = once.As[store.Registry](e.store)
	r.setSource(nil)
	return r
}

func (r *registration) setSource(facts map[string]string) {
	text := store.SourceText(r.Source.Name(), facts)
	r.source.Store(&text)
}

// self is the consumer as it is registered.
func (r *registration) self(keys string) store.Consumer {
	return store.Consumer{Name: r.operationOf(r.Name), Source: *r.source.Load(), Keys: keys, SharedWith: r.SharedWith}
}

// registerUntil registers the consumer, and tries again while the store or the
// broker does not answer. It returns false if ctx ends first, and an error if a
// person must act.
func (r *registration) registerUntil(ctx context.Context) (registered bool, err error) {
	pause := &backoff.Backoff{First: reconnectFirst, Limit: reconnectLimit}
	for {
		err := r.register(ctx)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, once.ErrInvalid) || errors.Is(err, once.ErrClosed) || errors.Is(err, broker.ErrInvalid):
			return false, err
		}
		r.logger.WarnContext(ctx, "inbox: the consumer could not be registered, and nothing is consumed", logs.Spaced(""), "error", err)
		if backoff.Sleep(ctx, pause.Next()) != nil {
			return false, nil
		}
	}
}

// register registers the consumer, and sets keys and since.
func (r *registration) register(ctx context.Context) error {
	if r.registry == nil {
		return nil
	}
	unlocated := r.locate(ctx)
	self := r.self("")
	all, err := r.registry.Consumers(ctx)
	if err == nil && unlocated != nil && !slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Name == self.Name }) {
		err = unlocated // a new name waits until the broker tells where its source is
	}
	if err == nil {
		err = r.findKeys(&self, all)
	}
	begun := time.Now()
	var before store.Consumer
	if err == nil {
		before, err = r.registry.Register(ctx, self)
	}
	switch {
	case err != nil:
		return r.notRegistered(err)
	case before.Name != "" && !sameSource(before.Source, self.Source):
		return r.elsewhere(before, self)
	case before.Name == "":
		r.keys = self.Keys
		if !slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Keys == self.Keys }) {
			r.since = time.Unix(1, 0) // it has never handled a message
		} // else it had another name, and when it was last running under that is not known
	default:
		r.keys = before.Keys
		for _, c := range all { // it may have several sources, and names
			if c.Keys == before.Keys {
				before.Seen = min(before.Seen, c.Seen)
			}
		}
		r.since = begun.Add(-before.Seen).Add(signOfLifeEvery + clockTolerance)
	}
	return nil
}

func (r *registration) notRegistered(err error) error {
	return fmt.Errorf("inbox: consumer %q could not be registered: %w", r.Name, err)
}

// locate asks the broker where the source is.
func (r *registration) locate(ctx context.Context) error {
	source, ok := r.Source.(broker.Located)
	if r.located || !ok {
		r.located = true
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	facts, err := source.Location(ctx)
	if err != nil {
		return fmt.Errorf("the broker does not tell where %s is: %w", r.Source.Name(), err)
	}
	r.setSource(facts)
	r.located = true
	return nil
}

// confirm registers the source with all that its broker tells, if the broker did
// not answer when the consumer was registered.
func (r *registration) confirm(ctx context.Context) error {
	if r.registry == nil || r.located {
		return nil
	}
	if err := r.locate(ctx); err != nil {
		return err
	}
	self := r.self("")
	all, err := r.registry.Consumers(ctx)
	if err == nil {
		err = r.findKeys(&self, all)
	}
	var before store.Consumer
	if err == nil {
		before, err = r.registry.Register(ctx, self)
	}
	switch {
	case err != nil:
		r.located = false
		return r.notRegistered(err)
	case !sameSource(before.Source, self.Source):
		return r.elsewhere(before, self)
	}
	return nil
}

// elsewhere is the error of a name that belongs to another source, or to a
// consumer that was retired.
func (r *registration) elsewhere(there, self store.Consumer) error {
	if at, by, why, ok := store.RetiredAt(there.Source); ok {
		return invalid("consumer %q was retired on %s by %s (%s). Give a new consumer another name. To have this one continue after all, with the keys "+
			"that it had, set SharedWith: %q", r.Name, at.Format(time.RFC3339), cmp.Or(by, "somebody"), cmp.Or(why, "the reason was too long to keep"), there.Source)
	}
	return invalid("the name %q belongs to the consumer of the source %q, and this one is at %q: with one name and one store, each would "+
		"take the messages of the other for duplicates. If it is another service, give it another name. If the same messages come from both, "+
		"because the consumer has moved, its broker was renamed, or they come from two brokers, set SharedWith: %q", r.Name, there.Source, self.Source, there.Source)
}

func sameSource(a, b string) bool {
	_, ok := store.MatchSource(a, b)
	return ok
}

// mayBe returns an error if a consumer may be one whose row cannot be read, under
// this name or another: with a new row it would have other keys, and handle
// everything again. The store says so of a row that it finds by the name.
func mayBe(self store.Consumer, all []store.Consumer) error {
	if slices.ContainsFunc(all, func(c store.Consumer) bool { return c.Name == self.Name && c.IsLegible() }) {
		return nil
	}
	for _, c := range all {
		if !c.IsLegible() && c.Name != self.Name {
			return fmt.Errorf("it is not known under which keys it has handled messages, because a row of the registry that may be its own cannot be read: %w", c.Damaged)
		}
	}
	return nil
}

// findKeys sets the Keys under which a consumer continues.
func (r *registration) findKeys(self *store.Consumer, all []store.Consumer) error {
	seen := time.Duration(math.MaxInt64) // never
	if err := mayBe(*self, all); err != nil {
		return err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(c store.Consumer) bool { return !c.IsLegible() })
	for _, c := range all {
		if c.Name == self.Name {
			self.Keys, seen = c.Keys, min(seen, c.Seen)
		} else if r.RenamedFrom != "" && c.Name == r.operationOf(r.RenamedFrom) && self.Keys == "" {
			self.Keys = c.Keys
		}
	}
	if self.Keys == "" && r.RenamedFrom != "" && r.Rebuild == "" {
		return invalid("it is renamed from %q, which was never at the source %q", r.RenamedFrom, self.Source)
	}
	self.Keys = cmp.Or(self.Keys, self.Name)
	_, forEach := r.Source.(broker.Subscriber)
	for _, c := range all {
		same := sameSource(c.Source, self.Source)
		switch {
		case c.Keys != self.Keys && same && !forEach && r.located && isPlain(c.Name) && r.Rebuild == "":
			return invalid("the source %q was consumed by %q: if this is the same consumer with a new name, set RenamedFrom: %q, "+
				"or everything would be handled again; if it is another one, give it a source of its own", self.Source, c.Name, c.Name)
		case c.Keys == self.Keys && !same && !sameSource(c.Source, r.SharedWith) && c.Name != self.Name && c.Seen < seen:
			return invalid("its keys belong to consumer %q at the source %q, which had this name before, and this one is at %q. If it is another "+
				"consumer, give it another name. If it is the same one, which has moved, or the same messages come from both, set "+
				"SharedWith: %q", c.Name, c.Source, self.Source, c.Source)
		}
	}
	return nil
}

// stayAlive updates the registration until ctx ends.
func (r *registration) stayAlive(ctx context.Context) {
	if r.registry == nil {
		return
	}
	for backoff.Sleep(ctx, signOfLifeEvery) == nil {
		self := r.self(r.keys)
		before, err := r.registry.Register(ctx, self)
		if err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "inbox: the registration could not be updated", logs.Spaced(""), "error", err)
		}
		if _, _, _, retired := store.RetiredAt(before.Source); err == nil && retired {
			r.fatal(r.elsewhere(before, self)) // it was paused for so long that it seemed to have ended
			return
		}
	}
}

// checkHorizon returns an error if a key may be forgotten before its message is
// delivered for the last time.
func (r *registration) checkHorizon(ctx context.Context) error {
	source, ok := r.Source.(broker.Horizon)
	if !ok || !r.keyed {
		return nil
	}
	horizon, err := source.RedeliveryHorizon(ctx)
	switch {
	case err != nil:
		r.logger.WarnContext(ctx, "inbox: how long messages can be redelivered could not be read", logs.Spaced(""), "error", err)
	case horizon > r.Policy.KeepKey:
		return invalid("consumer %q remembers keys for %v, but %s can deliver a message again after %v: raise Policy.KeepKey",
			r.Name, r.Policy.KeepKey, r.Source.Name(), horizon)
	}
	return nil
}
