package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// departs begins a TransactAt that writes a row, and returns while it is in
// flight.
func (b *txBench[Tx]) departs(ctx context.Context, from, to store.Position, effect string) *flight {
	f, up := &flight{make(chan error, 1), make(chan error, 1)}, make(chan struct{})
	go func() {
		f.ended <- b.positions(0).TransactAt(ctx, from, to, func(tx Tx) error {
			if err := b.effect(tx, effect); err != nil {
				return err
			}
			close(up)
			select {
			case err := <-f.decide:
				return err
			case <-b.Done(): // the case has failed
				return b.Err()
			}
		})
	}()
	select {
	case <-up:
	case err := <-f.ended:
		b.failf("a TransactAt that must succeed ended with %v", err)
	}
	return f
}

// positionInFlight makes other calls while a transaction is in flight: they may
// wait or return a conflict, and nothing else.
func positionInFlight[Tx any](b *txBench[Tx]) {
	no := &cause{"rolled back"}
	for name, end := range map[string]error{"commit": nil, "rollback": no} {
		p := b.open(b.consumer(name), "0")
		f := b.departs(b, p, moved(p, 1), name)
		ctx, cancel := context.WithTimeout(b, inFlightWait)
		defer cancel()
		err := b.positions(1).TransactAt(ctx, p, moved(p, 2), func(Tx) error { return errRan })
		b.meetsMove("TransactAt", err)
		b.wantStored("TransactAt beside one in flight", p)
		b.meetsMove("SetPosition", b.positions(2).SetPosition(ctx, moved(p, 3)))

		opened := make(chan error, 1)
		var after store.Position
		go func() { // it may wait, but not for ever
			for {
				var err error
				if after, err = b.positions(3).OpenPosition(b, p.Consumer, p.Partition); !errors.Is(err, once.ErrConflict) {
					opened <- err
					return
				}
				runtime.Gosched()
			}
		}()
		if err := f.land(end); !errors.Is(err, end) {
			b.failf("the TransactAt in flight ended with %v, want %v", err, end)
		}
		b.must("OpenPosition", <-opened)
		want := p
		if end == nil {
			want = moved(p, 1)
		}
		// A SetPosition whose caller has given up may still have been applied.
		if after.Epoch <= p.Epoch || after.Offset != want.Offset && after.Offset != 3 {
			b.failf("OpenPosition beside a transaction that ended with a %s returned %+v, want %+v", name, after, want)
		}
		b.wantEffects(name, map[bool]int{true: 1, false: 0}[end == nil])
		b.notMoved("TransactAt after the "+name, p, moved(p, 2), once.ErrLeaseLost)
	}
}

// positionOvertaken opens, sets and moves rows of transactions in flight.
func positionOvertaken[Tx any](b *txBench[Tx]) {
	for name, overtake := range map[string]func(p store.Position) error{
		"open": func(p store.Position) error {
			_, err := b.positions(1).OpenPosition(b, p.Consumer, p.Partition)
			return err
		},
		"set": func(p store.Position) error { return b.positions(2).SetPosition(b, moved(p, 3)) },
		"move": func(p store.Position) error {
			return b.positions(3).TransactAt(b, p, moved(p, 2), func(Tx) error { return nil })
		},
	} {
		p := b.open(b.consumer(name), "0")
		f := b.departs(b, p, moved(p, 1), name)
		b.must(name, overtake(p))
		after := b.stored(p)
		b.wantErr("the TransactAt in flight", f.land(nil), once.ErrConflict)
		b.wantStored("a TransactAt that was overtaken", after)
		b.wantEffects(name, 0)
		b.notMoved("TransactAt after it was overtaken", p, moved(p, 1), once.ErrLeaseLost)
	}
}

// meetsMove checks the result of a call that meets a transaction in flight on
// its row.
func (b *txBench[Tx]) meetsMove(doing string, err error) {
	if err == nil || errors.Is(err, errRan) || errors.Is(err, once.ErrLeaseLost) {
		b.failf("%s beside a transaction in flight on its row returned %v, want an end of the waiting, or ErrConflict",
			doing, err)
	}
}

func positionContextEnds[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	ctx, cancel := context.WithCancel(b)
	f := b.departs(ctx, p, moved(p, 1), "row")
	cancel()
	b.must("a TransactAt whose context has ended while body ran", f.land(nil))
	b.wantStored("TransactAt", moved(p, 1))
	b.wantEffects("row", 1)
}

func positionContextEnded[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	ctx, cancel := context.WithCancel(b)
	cancel()
	ran := func(Tx) error { return errRan }
	for doing, call := range map[string]func() error{
		"TransactAt":   func() error { return b.positions(0).TransactAt(ctx, p, moved(p, 1), ran) },
		"OpenPosition": func() error { _, err := b.positions(0).OpenPosition(ctx, p.Consumer, p.Partition); return err },
		"SetPosition":  func() error { return b.positions(0).SetPosition(ctx, moved(p, 1)) },
	} {
		if err := call(); err == nil || errors.Is(err, errRan) {
			b.failf("%s with a context that has ended returned %v", doing, err)
		}
		b.wantStored(fmt.Sprintf("%s with a context that has ended", doing), p)
	}
}
