package storetest

import (
	"bytes"
	"context"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/store"
)

// sealing returns a Sealing that seals everything and accepts nothing plain.
func (b *bench) sealing() once.Sealing {
	ring, err := once.NewRing(once.Secret{ID: "storetest", Bytes: bytes.Repeat([]byte("s"), 32)})
	b.must("NewRing", err)
	return once.Sealing{Ring: ring, Only: once.SealAll}
}

// sealedStore is a store with its own options.
type sealedStore struct {
	once.Store
	options *once.Options
}

func (s sealedStore) Options() *once.Options { return s.options }
func (s sealedStore) Unwrap() once.Store     { return s.Store }

type sealedTxStore[Tx any] struct {
	once.TxStore[Tx]
	options *once.Options
}

func (s sealedTxStore[Tx]) Options() *once.Options { return s.options }
func (s sealedTxStore[Tx]) Unwrap() once.Store     { return s.TxStore }

const sealedAnswer = "secret \x00\u2028 answer"

func doSealed(b *bench) {
	op := b.op(nil)
	options := make([]*once.Options, len(b.stores))
	for i := range options {
		options[i] = once.Options{Sealing: b.sealing()}.Ready()
	}
	for _, input := range [][]byte{nil, []byte("input")} {
		var w work
		work := op.For("id " + string(input))
		if input != nil {
			work = work.Input(input)
		}
		for i := range b.stores {
			got, err := once.Do(b, sealedStore{b.spread(i), options[i]}, work, w.returning(sealedAnswer, nil))
			b.wantAnswer("Do of a sealed store", got, err, sealedAnswer)
		}
		b.wantRan(&w, 1)
		rec, err := b.store.Get(b, work.Key())
		b.must("Get", err)
		if bytes.Contains(rec.Outcome.Body, []byte("secret")) {
			b.failf("the answer can be read in the store: %q", rec.Outcome.Body)
		}
	}
}

func doTxSealed[Tx any](b *txBench[Tx]) {
	op, nothing := b.op(nil), &once.Operation[struct{}]{Name: b.key("").Operation, Policy: once.Policy{Wait: b.patience}}
	options := make([]*once.Options, len(b.stores))
	for i := range options {
		options[i] = once.Options{Sealing: b.sealing()}.Ready()
	}
	var w work
	for i := range b.stores {
		s := sealedTxStore[Tx]{b.txSpread(i), options[i]}
		got, err := once.DoTx(b, s, op.For("1").Input([]byte("input")), b.writing(&w, "row", sealedAnswer, nil))
		b.wantAnswer("DoTx of a sealed store", got, err, sealedAnswer)
		// An outcome with only one possible value may be written with the claim, and
		// must equal the one that is settled.
		_, err = once.DoTx(b, s, nothing.For("2").Input([]byte("input")), func(_ context.Context, tx Tx) (v struct{}, err error) {
			return v, b.effect(tx, "other row")
		})
		b.must("DoTx without a value", err)
	}
	b.wantRan(&w, 1)
	b.wantEffects("row", 1)
	b.wantEffects("other row", 1)
}

// sealedMessage returns a message with all the parts that are sealed, and those
// that sealing is bound to.
func (b *txBench[Tx]) sealedMessage() broker.Message {
	return broker.Message{ID: b.consumer("sealed"), Topic: b.consumer("topic"), OrderingKey: b.consumer("order"), Body: append(everyByte(), "secret"...),
		Header: map[string]string{"who": "secret", "once-type": "sealed"}}
}

func (b *txBench[Tx]) wantOpened(where string, raw, opened broker.Message, err error) {
	want := b.sealedMessage()
	switch {
	case bytes.Contains(raw.Body, []byte("secret")) || strings.Contains(raw.Header["who"], "secret"):
		b.failf("%s: the message can be read in the store: %q %v", where, raw.Body, raw.Header)
	case err != nil:
		b.failf("%s: a sealed message cannot be opened: %v", where, err)
	case !bytes.Equal(opened.Body, want.Body) || opened.Header["who"] != "secret" || opened.Header["once-type"] != "sealed":
		b.failf("%s: a sealed message came back as %q %v", where, opened.Body, opened.Header)
	}
}

func outboxSealed[Tx any](b *txBench[Tx]) {
	sealing := b.sealing()
	m := b.sealedMessage()
	b.put(store.Outgoing{Message: store.SealOutgoing(&sealing, m)})
	out := b.outAs(store.Pending, m.ID)
	opened, err := store.OpenOutgoing(&sealing, out.Message)
	b.wantOpened("outbox", out.Message, opened, err)
	b.changes(1, "MoveOutgoing", b.move1(people, store.Stuck, out))
	out = b.outAs(store.Stuck, m.ID)
	opened, err = store.OpenOutgoing(&sealing, out.Message)
	b.wantOpened("outbox, moved", out.Message, opened, err)
}

func shelfSealed[Tx any](b *txBench[Tx]) {
	sealing := b.sealing()
	put := store.SealShelved(&sealing, store.Shelved{Consumer: b.consumer("sealed"), Key: "key", Message: b.sealedMessage(), Origin: "o",
		State: store.Parked, Reason: store.UnknownOutcome + strings.Repeat("secret ", 70)})
	b.must("Shelve", b.shelf(0).Shelve(b, []store.Shelved{put}))
	for i := range b.stores {
		found, err := b.shelf(i).Shelved(b, store.ShelfQuery{Consumer: put.Consumer})
		b.must("Shelved", err)
		if len(found) != 1 {
			b.failf("%d messages are on the shelf, want 1", len(found))
			return
		}
		if strings.Contains(found[0].Reason, "secret") {
			b.failf("its reason can be read in the store: %s", found[0].Reason)
		}
		opened := store.OpenShelved(&sealing, found[0], false)
		b.wantOpened("shelf", found[0].Message, opened.Message, opened.Unopened)
		if opened.Reason != store.UnknownOutcome+strings.Repeat("secret ", 70) {
			b.failf("its reason came back as %q", opened.Reason)
		}
		found[0].Reason = "another"
		b.must("Change", b.shelf(i).Change(b, store.SealReason(&sealing, found[0])))
		found[0].Version++
		found[0].Reason = opened.Reason
		b.must("Change", b.shelf(i).Change(b, store.SealReason(&sealing, found[0])))
	}
}
