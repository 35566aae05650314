package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/effectively-once/once"
)

func doTxRules[Tx any]() []txRule[Tx] {
	return []txRule[Tx]{
		{"dotx/once",
			"Of several calls at once, in several processes, one commits its rows and all return its answer.",
			doTxOnce[Tx]},
		{"dotx/failed",
			"A DoTx that fails or panics leaves nothing, and the next one runs.",
			doTxFailed[Tx]},
		{"dotx/rejected",
			"A rejection rolls back the rows, and is recorded and replayed.",
			doTxRejected[Tx]},
		{"dotx/sealed",
			"A sealed answer comes back unchanged, even if it may be written together with its claim.",
			doTxSealed[Tx]},
		{"dotx/mismatch",
			"The same key with another input is ErrMismatch, and the work writes nothing.",
			doTxMismatch[Tx]},
		{"dotx/unknown",
			"DoTx runs work again that a crash interrupted, if the operation resends.",
			doTxUnknown[Tx]},
		{"dotx/lost-reply",
			"If the reply to a commit is lost, the first answer is found and returned.",
			doTxLostReply[Tx]},
		{"dotx/lost-commit",
			"If COMMIT never arrives, the work runs again, and its rows are committed once.",
			doTxLostCommit[Tx]},
		{"dotx/late-commit",
			"If COMMIT arrives after its caller has given up, nothing runs beside it that also commits.",
			doTxLateCommit[Tx]},
		{"dotx/conflict",
			"A transaction that the database rolled back runs again.",
			doTxConflict[Tx]},
		{"intx/commit",
			"InTx commits with the caller's transaction, and is replayed afterwards.",
			inTxCommit[Tx]},
		{"intx/rollback",
			"InTx is rolled back with the caller's transaction, and can run again.",
			inTxRollback[Tx]},
		{"intx/failed",
			"If the caller commits after an error, the key is not stuck.",
			inTxFailed[Tx]},
	}
}

// writing returns work that writes a row and returns a value. It counts as run
// if it could write, because a duplicate may enter it too.
func (b *txBench[Tx]) writing(w *work, effect, answer string, fails error) func(context.Context, Tx) (string, error) {
	return func(_ context.Context, tx Tx) (string, error) {
		if err := b.effect(tx, effect); err != nil {
			return "", err
		}
		w.ran.Add(1)
		return answer, fails
	}
}

func doTxOnce[Tx any](b *txBench[Tx]) {
	op := b.op(nil)
	var w work
	var replayed atomic.Int64
	b.together(16, func(i int) {
		var how once.Report
		got, err := once.DoTx(b, b.txSpread(i), op.For("1").Report(&how), b.writing(&w, "row", "first", nil))
		b.wantAnswer("DoTx", got, err, "first")
		if how.Replayed {
			replayed.Add(1)
		}
	})
	b.wantEffects("row", 1)
	if n := replayed.Load(); n != 15 {
		b.failf("%d of 16 answers were reported as replayed, want 15", n)
	}
}

func doTxFailed[Tx any](b *txBench[Tx]) {
	op := b.op(nil)
	var w work
	no := &cause{"out of stock"}
	_, err := once.DoTx(b, b.txStore, op.For("1"), b.writing(&w, "row", "", no))
	b.wantErr("DoTx", err, no)
	b.leftNothing(op.For("1").Key(), "row")
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				b.failf("the panic of the work came back as %v", r)
			}
		}()
		_, _ = once.DoTx(b, b.txStore, op.For("1"), func(_ context.Context, tx Tx) (string, error) {
			if _, err := b.writing(&w, "row", "", nil)(b, tx); err != nil {
				return "", err
			}
			panic("boom")
		})
	}()
	b.leftNothing(op.For("1").Key(), "row")
	got, err := once.DoTx(b, b.txStores[1], op.For("1"), b.writing(&w, "row", "ok", nil))
	b.wantAnswer("DoTx", got, err, "ok")
	b.wantEffects("row", 1)
}

func doTxRejected[Tx any](b *txBench[Tx]) {
	op := b.op(nil)
	var w work
	for i := range b.stores {
		got, err := once.DoTx(b, b.txSpread(i), op.For("1"), b.writing(&w, "row", "declined", once.ErrRejected))
		if got != "declined" || !errors.Is(err, once.ErrRejected) {
			b.failf("a rejection was returned as %q, %v", got, err)
		}
	}
	b.wantRan(&w, 1)
	b.wantEffects("row", 0)
}

func doTxMismatch[Tx any](b *txBench[Tx]) {
	op := b.op(nil)
	var w work
	for i, input := range []string{"a", "b", "a"} {
		_, err := once.DoTx(b, b.txSpread(i), op.For("1").Input([]byte(input)), b.writing(&w, "row", "", nil))
		if input == "a" {
			b.must("DoTx", err)
		} else {
			b.wantErr("DoTx with another input", err, once.ErrMismatch)
		}
	}
	b.wantRan(&w, 1)
	b.wantEffects("row", 1)
}

func doTxUnknown[Tx any](b *txBench[Tx]) {
	op := b.op(resends)
	b.lapse(op.For("1").Key(), "crashed")
	var w work
	var how once.Report
	got, err := once.DoTx(b, b.txStore, op.For("1").Report(&how), b.writing(&w, "row", "second", nil))
	b.wantAnswer("DoTx after a crash", got, err, "second")
	if b.wantEffects("row", 1); how.Attempt != 2 {
		b.failf("the attempt after a crash is reported as %+v", how)
	}
}

// commitGoesWrong checks that work is done once although its first commit fails
// or is lost.
func (b *txBench[Tx]) commitGoesWrong(plan Plan, wantRan int64, orRan ...int64) {
	op := b.op(nil)
	var w work
	faulty := FaultyTx(b.txStore, plan)
	got, err := once.DoTx(b, faulty, op.For("1"), func(ctx context.Context, tx Tx) (string, error) {
		_, err := b.writing(&w, "row", "", nil)(ctx, tx)
		return fmt.Sprint("run ", w.ran.Load()), err
	})
	faulty.Wait()
	if ran := w.ran.Load(); slices.Contains(orRan, ran) {
		wantRan = ran
	}
	b.wantAnswer("DoTx", got, err, fmt.Sprint("run ", wantRan))
	b.wantRan(&w, wantRan)
	b.wantEffects("row", 1)
	got, err = once.DoTx(b, b.txStores[1], op.For("1"), b.writing(&w, "row", "again", nil))
	b.wantAnswer("DoTx afterwards", got, err, fmt.Sprint("run ", wantRan))
	b.wantEffects("row", 1)
}

func doTxLostReply[Tx any](b *txBench[Tx]) {
	b.commitGoesWrong(On("Transact", 1, Fault{Reply: fmt.Errorf("%w: %w", once.ErrOutcomeUnknown, errReset)}), 1)
}

func doTxLostCommit[Tx any](b *txBench[Tx]) {
	b.commitGoesWrong(On("Transact", 1, Fault{Undo: fmt.Errorf("%w: %w", once.ErrOutcomeUnknown, errReset)}), 2)
}

func doTxLateCommit[Tx any](b *txBench[Tx]) {
	late := make(chan struct{})
	var orRan []int64
	if b.h.Batched {
		orRan = append(orRan, 2) // the first commit was refused
	}
	b.commitGoesWrong(func(c Call) Fault {
		switch {
		case c.Method == "Transact" && c.N == 1:
			return Fault{Late: late}
		case c.Method == "Transact" && c.N == 2:
			close(late)
		}
		return Fault{}
	}, 1, orRan...)
}

func doTxConflict[Tx any](b *txBench[Tx]) {
	b.commitGoesWrong(On("Transact", 1, Fault{Undo: once.ErrConflict}), 2)
}

func (b *txBench[Tx]) doInTx(tx Tx, w once.Work[string], ran *work, fails error) (string, error) {
	return once.InTx(b, b.txStore, tx, w, func(ctx context.Context) (string, error) {
		return b.writing(ran, "row", "first", fails)(ctx, tx)
	})
}

func inTxCommit[Tx any](b *txBench[Tx]) {
	op := b.op(nil)
	var w work
	for range 2 {
		b.inTx(true, func(tx Tx) {
			got, err := b.doInTx(tx, op.For("1"), &w, nil)
			b.wantAnswer("InTx", got, err, "first")
		})
		b.wantEffects("row", 1)
	}
	got, err := once.DoTx(b, b.txStores[1], op.For("1"), b.writing(&w, "row", "again", nil))
	b.wantAnswer("DoTx afterwards", got, err, "first")
	b.wantRan(&w, 1)
	b.wantEffects("row", 1)
}

func inTxRollback[Tx any](b *txBench[Tx]) {
	op := b.op(nil)
	var w work
	for _, commit := range []bool{false, true} {
		b.inTx(commit, func(tx Tx) {
			got, err := b.doInTx(tx, op.For("1"), &w, nil)
			b.wantAnswer("InTx", got, err, "first")
		})
		if !commit {
			b.leftNothing(op.For("1").Key(), "row")
		}
	}
	b.wantRan(&w, 2)
	b.wantEffects("row", 1)
}

func inTxFailed[Tx any](b *txBench[Tx]) {
	op := b.op(nil)
	var w work
	no := &cause{"out of stock"}
	b.inTx(true, func(tx Tx) {
		_, err := b.doInTx(tx, op.For("1"), &w, no)
		b.wantErr("InTx", err, no)
	})
	b.wantStatus(op.For("1").Key(), once.Absent)
	got, err := once.DoTx(b, b.txStores[1], op.For("1"), b.writing(&w, "row 2", "second", nil))
	b.wantAnswer("DoTx afterwards", got, err, "second")
	b.wantEffects("row 2", 1)
}
