package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/cmd/once/internal/trial"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/store"
)

// Lasting makes a run last until somebody has seen enough of it. The run then takes
// no more orders, finishes those under way, and is counted as any other. So that it
// can run for days, it forgets orders that are done, and the stores forget their
// keys after an hour.
type Lasting struct {
	Enough context.Context // its end ends the run

	// Open is called with the shop with once when it can be looked at. The run ends
	// if it returns an error.
	Open func(context.Context, Place) error
}

// Place is where the shop with once can be looked at.
type Place struct {
	Store    once.Store
	Sources  []broker.Source // of its consumers, to be asked for their lag
	Provider string          // the URL of what the payment provider knows of an order, followed by the order
	Disputed string          // the order whose customer asks about a charge
}

const (
	keptFor    = time.Hour              // keys, and what the provider knows
	betweenTwo = 400 * time.Millisecond // orders
	awayFor    = 15 * time.Second       // the broker
	awayOrders = 20                     // that are placed meanwhile

	refundEvery = 15 * time.Second
	mostOpen    = 20  // refunds with an unknown outcome
	mostParked  = 100 // letters
)

// enough reports whether a run that lasts is to end.
func (o Options) enough() bool { return o.Lasting != nil && o.Lasting.Enough.Err() != nil }

// linger waits for d in a run that lasts, or until it is to end.
func (o Options) linger(ctx context.Context, d time.Duration) {
	if o.Lasting == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(o.Lasting.Enough, cancel)()
	trial.Pause(ctx, d)
}

// last lets people look at the side, and does what keeps it from growing, until the
// run is to end.
func (s *side) last(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.options.Lasting.Enough, func() { cancel(nil) })()
	var working sync.WaitGroup
	for _, work := range []func(context.Context) error{
		(&janitor.Janitor{Store: s.store, KeepShelved: keptFor, Logger: quiet.Logger}).Run,
		s.giveUp,
		s.refunds,
		func(ctx context.Context) error {
			return s.options.Lasting.Open(ctx, Place{Store: s.store, Sources: s.events.sources(), Provider: s.provider.url + "/orders/", Disputed: "order-1"})
		},
	} {
		working.Go(func() {
			if err := work(ctx); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	working.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// giveUp discards the oldest letters that are parked, whenever there are too many. A
// busy database is no reason to end: the next time is soon.
func (s *side) giveUp(ctx context.Context) error {
	for ; ctx.Err() == nil; trial.Pause(ctx, refundEvery) {
		_ = s.discardOldest(ctx)
	}
	return nil
}

func (s *side) discardOldest(ctx context.Context) error {
	parked, err := s.store.Shelved(ctx, store.ShelfQuery{Consumer: "letters", States: []store.ShelfState{store.Parked}, Limit: 2 * mostParked, Bodiless: true})
	if err != nil || len(parked) <= mostParked {
		return err
	}
	var ids []string
	for _, m := range parked[:len(parked)-mostParked] {
		ids = append(ids, m.Message.ID)
	}
	_, err = inbox.Admin{Store: s.store}.Discard(ctx, store.ShelfQuery{Consumer: "letters", IDs: ids},
		inbox.Decision{By: "demo", Reason: "more letters are parked than this demo keeps"})
	return err
}

// refund is done by the people of the shop. The provider has no search for refunds
// that a program could use, so a person decides where its answer is lost.
var refund = &once.Operation[Receipt]{Name: "refund", Policy: once.Policy{KeepOutcome: keptFor, KeepKey: keptFor},
	Lookup: func(context.Context, once.Key) (r Receipt, happened bool, err error) {
		return r, false, errors.New("the provider has no search for refunds: look at its page of the order")
	}}

// refunds refunds an order now and then. The answers to the first refund, and to each
// third one, are lost.
func (s *side) refunds(ctx context.Context) error {
	for ; ctx.Err() == nil; trial.Pause(ctx, pollEvery) {
		s.mu.Lock()
		first := s.acked["order-1"]
		s.mu.Unlock()
		if first {
			break
		}
	}
	for order := "order-1"; ctx.Err() == nil; trial.Pause(ctx, refundEvery) {
		open, err := s.store.List(ctx, once.RecordQuery{Operation: refund.Name, Status: []once.Status{once.Unknown, once.Parked}, Limit: mostOpen})
		if err != nil || len(open.Records) >= mostOpen {
			continue
		}
		if order != "" {
			_, _ = once.Do(ctx, s.store, refund.For(order), func(ctx context.Context, _ once.Key) (Receipt, error) {
				return s.askRefund(ctx, order)
			})
		}
		order = s.recent()
	}
	return nil
}

// recent returns an order that was just confirmed, or "".
func (s *side) recent() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.placed) - 1; i >= 0; i-- {
		if id := s.placed[i].ID; s.acked[id] {
			return id
		}
	}
	return ""
}

func (s *side) askRefund(ctx context.Context, order string) (receipt Receipt, err error) {
	body, err := json.Marshal(Order{ID: order})
	if err != nil {
		return receipt, once.NotDone(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider.url+"/refund", bytes.NewReader(body))
	if err != nil {
		return receipt, once.NotDone(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return receipt, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return receipt, fmt.Errorf("the provider returned %s", resp.Status)
	}
	return receipt, json.NewDecoder(resp.Body).Decode(&receipt)
}

// takeRefund loses the first answer, and each third one. Of those, every other refund
// is made.
func (p *provider) takeRefund(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	n := p.asked
	p.asked++
	lost := n%3 == 0
	if !lost || n%2 == 0 {
		p.refunds[o.ID]++
	}
	p.mu.Unlock()
	if lost {
		panic(http.ErrAbortHandler) // closes the connection without an answer
	}
	json.NewEncoder(w).Encode(Receipt{ChargeID: "re_" + o.ID})
}

// known is what the provider knows of an order.
type known struct {
	Order   string
	Charges []Charge
	Refunds int
	Letters int
}

// tell shows what the provider knows of an order, to people who settle a key.
func (p *provider) tell(w http.ResponseWriter, r *http.Request) {
	order := r.PathValue("order")
	p.mu.Lock()
	k := known{Order: order, Charges: p.charges[order], Refunds: p.refunds[order], Letters: p.letters[order]}
	p.mu.Unlock()
	text, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(append(text, '\n'))
}

// forget forgets orders that were charged longer ago than keptFor.
func (p *provider) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.byKey {
		if time.Since(c.at) > keptFor {
			delete(p.byKey, key)
		}
	}
	for order, made := range p.charges {
		if time.Since(made[0].at) > keptFor {
			delete(p.charges, order)
			delete(p.refunds, order)
			delete(p.letters, order)
		}
	}
}

// forget adds up the orders so far, which are all settled, and forgets them.
func (s *side) forget(ctx context.Context) error {
	s.counting.Lock()
	defer s.counting.Unlock()
	c, tallies, err := s.countKept(ctx)
	if err != nil {
		return err
	}
	for _, table := range []string{"orders", "account", "charged", "credited", "mailed"} {
		if _, err := s.db.ExecContext(ctx, "DELETE FROM "+table); err != nil {
			return err
		}
	}
	s.past.add(c)
	for phase, t := range tallies {
		if s.pastTallies[phase] == nil {
			s.pastTallies[phase] = new(Tally)
		}
		s.pastTallies[phase].add(*t)
	}
	s.mu.Lock()
	s.placed = nil
	clear(s.acked)
	clear(s.met)
	clear(s.meetings)
	s.mu.Unlock()
	s.provider.forget()
	return nil
}

// add adds what is counted by order.
func (s *Side) add(o Side) {
	s.Orders += o.Orders
	s.Answered += o.Answered
	s.Effects += o.Effects
	s.Duplicated += o.Duplicated
	s.Lost += o.Lost
	s.Parked += o.Parked
	s.DuplicateOrders += o.DuplicateOrders
	s.DuplicateCharges += o.DuplicateCharges
	s.DuplicatePoints += o.DuplicatePoints
	s.DuplicateLetters += o.DuplicateLetters
	s.OverchargedCents += o.OverchargedCents
}

func (t *Tally) add(o Tally) {
	t.Orders += o.Orders
	t.Doubled += o.Doubled
	t.Lost += o.Lost
	t.Parked += o.Parked
}
