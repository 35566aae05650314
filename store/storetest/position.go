package storetest

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

func positionRules[Tx any](batched bool) []txRule[Tx] {
	inFlight := txRule[Tx]{"position/in-flight",
		"A row is locked until its transaction ends: no other call moves or opens it meanwhile.",
		positionInFlight[Tx]}
	if batched {
		inFlight = txRule[Tx]{"position/overtaken",
			"A transaction that is one request is refused with ErrConflict if its row was moved or opened meanwhile, and writes nothing.",
			positionOvertaken[Tx]}
	}
	return []txRule[Tx]{
		{"position/never-written",
			"OpenPosition of a row that was never written returns Epoch 1 and an empty Log.",
			positionNew[Tx]},
		{"position/opened",
			"OpenPosition raises the Epoch and changes nothing else.",
			positionOpened[Tx]},
		{"position/moves",
			"TransactAt moves the row in one commit with the rows of body.",
			positionMoves[Tx]},
		{"position/fails",
			"If body fails, nothing is moved, and its error is returned.",
			positionFails[Tx]},
		{"position/panics",
			"If body panics or ends its goroutine, nothing is moved.",
			positionPanics[Tx]},
		{"position/fenced",
			"After OpenPosition, earlier openers can no longer move the row: ErrLeaseLost, and body is not called.",
			positionFenced[Tx]},
		{"position/elsewhere",
			"If the row differs from from in Epoch, Log or Offset, TransactAt returns ErrLeaseLost.",
			positionElsewhere[Tx]},
		{"position/repeated",
			"A TransactAt that was already committed returns nil and does not call body.",
			positionRepeated[Tx]},
		{"position/set",
			"SetPosition writes a row whoever has it open, and raises its Epoch.",
			positionSet[Tx]},
		{"position/exact", "Names, Log, Offset and Digest are kept exactly.", positionExact[Tx]},
		{"position/lists",
			"Positions returns the rows of one consumer, by partition.",
			positionLists[Tx]},
		{"position/keys",
			"ClaimTx and SettleTx in body commit with the position, and are rolled back with it.",
			positionKeys[Tx]},
		{"position/context-ends",
			"The end of the context does not end the transaction.",
			positionContextEnds[Tx]},
		{"position/context-ended",
			"A TransactAt whose context has ended fails and changes nothing.",
			positionContextEnded[Tx]},
		inFlight,
		{"position/race",
			"Of several equal moves at once, the rows of exactly one are committed.",
			positionRace[Tx]},
	}
}

func (b *txBench[Tx]) positions(i int) store.Positions[Tx] {
	return capability[store.Positions[Tx]](b.bench, b.txSpread(i))
}

func (b *txBench[Tx]) open(consumer, partition string) store.Position {
	p, err := b.positions(0).OpenPosition(b, consumer, partition)
	b.must("OpenPosition", err)
	return p
}

// stored returns the row of a position, which must exist.
func (b *txBench[Tx]) stored(at store.Position) store.Position {
	all, err := b.positions(1).Positions(b, at.Consumer)
	b.must("Positions", err)
	i := slices.IndexFunc(all, func(p store.Position) bool { return p.Partition == at.Partition })
	if i < 0 {
		b.failf("Positions has no row of %q in %q: %+v", at.Consumer, at.Partition, all)
	}
	return all[i]
}

func (b *txBench[Tx]) wantStored(after string, want store.Position) {
	if got := b.stored(want); got != want {
		b.failf("after %s the position is %+v, want %+v", after, got, want)
	}
}

// moved returns a later position.
func moved(p store.Position, offset int64) store.Position {
	p.Log, p.Offset = "log 1", offset
	copy(p.Digest[:], fmt.Sprint("digest of ", offset))
	return p
}

// move calls TransactAt, which writes a row and must succeed.
func (b *txBench[Tx]) move(from, to store.Position, effect string) {
	b.must("TransactAt", b.positions(0).TransactAt(b, from, to, func(tx Tx) error { return b.effect(tx, effect) }))
}

// notMoved calls TransactAt, which must not call body.
func (b *txBench[Tx]) notMoved(doing string, from, to store.Position, want error) {
	before := b.stored(from)
	err := b.positions(1).TransactAt(b, from, to, func(tx Tx) error {
		_ = b.effect(tx, "unwanted")
		return errors.New("the body was called")
	})
	if !errors.Is(err, want) {
		b.failf("%s: got error %v, want %v", doing, err, want)
	}
	b.wantStored(doing, before)
	b.wantEffects("unwanted", 0)
}

func positionNew[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	if all, err := b.positions(0).Positions(b, c); err != nil || len(all) != 0 {
		b.failf("the positions of a consumer that has none are %+v, %v", all, err)
	}
	want := store.Position{Consumer: c, Partition: "0", Epoch: 1}
	if got := b.open(c, "0"); got != want {
		b.failf("OpenPosition of a row that was never written returned %+v, want %+v", got, want)
	}
	b.wantStored("OpenPosition", want)
	b.move(want, moved(want, 0), "row")
	b.wantEffects("row", 1)
}

func positionOpened[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	to := moved(p, 7)
	b.move(p, to, "row")
	for range 3 {
		to.Epoch++
		if got := b.open(p.Consumer, p.Partition); got != to {
			b.failf("OpenPosition returned %+v, want %+v", got, to)
		}
		b.wantStored("OpenPosition", to)
	}
	if other := b.open(b.consumer("b"), "0"); other.Epoch != 1 {
		b.failf("opening the row of one consumer raised that of another: %+v", other)
	}
	if other := b.open(p.Consumer, "1"); other.Epoch != 1 {
		b.failf("opening one partition raised the epoch of another: %+v", other)
	}
}

func positionMoves[Tx any](b *txBench[Tx]) {
	p, other := b.open(b.consumer("a"), "0"), b.open(b.consumer("a"), "1")
	for i := range 3 {
		to := moved(p, int64(i*10))
		b.move(p, to, "row")
		b.wantStored("TransactAt", to)
		p = to
	}
	b.wantEffects("row", 3)
	b.wantStored("a TransactAt of another partition", other)
	back := moved(p, 5)
	back.Log = "log 2"
	b.move(p, back, "row")
	b.wantStored("a move to another log", back)
}

func positionFails[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	err := b.positions(0).TransactAt(b, p, moved(p, 1), func(tx Tx) error {
		if err := b.effect(tx, "row"); err != nil {
			return err
		}
		return fmt.Errorf("out of stock: %w", &cause{"shelf 7"})
	})
	var c *cause
	if !errors.As(err, &c) || c.text != "shelf 7" {
		b.failf("the error of the body was returned as %v", err)
	}
	b.wantStored("a body that failed", p)
	b.wantEffects("row", 0)
	b.move(p, moved(p, 1), "row")
}

func positionPanics[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	for name, leave := range map[string]func(){"a panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		var value any
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { value = recover() }()
			err := b.positions(0).TransactAt(b, p, moved(p, 1), func(tx Tx) error {
				if err := b.effect(tx, "row"); err != nil {
					return err
				}
				leave()
				return nil
			})
			panic(fmt.Sprintf("it went on, with %v", err))
		}()
		wg.Wait()
		if name == "a panic" && value != "boom" || name == "Goexit" && value != nil {
			b.failf("%s of the body was returned as %v", name, value)
		}
		b.wantStored(name+" of a body", p)
		b.wantEffects("row", 0)
	}
	b.move(p, moved(p, 1), "row")
}

func positionFenced[Tx any](b *txBench[Tx]) {
	old := b.open(b.consumer("a"), "0")
	b.move(old, moved(old, 1), "row")
	old = moved(old, 1)
	present := b.open(old.Consumer, old.Partition)
	b.notMoved("TransactAt in an epoch that has ended", old, moved(old, 2), once.ErrLeaseLost)
	beginning := store.Position{Consumer: old.Consumer, Partition: "0", Epoch: old.Epoch}
	b.notMoved("a repeated TransactAt in an epoch that has ended", beginning, old, once.ErrLeaseLost)
	future := present
	future.Epoch++
	b.notMoved("TransactAt in an epoch that is to come", future, moved(future, 2), once.ErrLeaseLost)
	b.move(present, moved(present, 2), "row")
	b.wantEffects("row", 2)
}

func positionElsewhere[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	b.move(p, moved(p, 10), "row")
	at := moved(p, 10)
	wrong := map[string]store.Position{"the previous offset": moved(p, 9), "the next offset": moved(p, 11),
		"the beginning": p}
	logs := map[string]string{"another log": "log 2", "a log with another case": "LOG 1", "a log with a space": "log 1 "}
	for name, log := range logs {
		other := at
		other.Log = log
		wrong[name] = other
	}
	for name, from := range wrong {
		b.notMoved("TransactAt from "+name, from, moved(from, 20), once.ErrLeaseLost)
	}
	never := store.Position{Consumer: b.consumer("never"), Partition: "0", Epoch: 1}
	err := b.positions(0).TransactAt(b, never, moved(never, 1), func(Tx) error { return errRan })
	b.wantErr("TransactAt of a row that was never opened", err, once.ErrLeaseLost)
	b.move(at, moved(at, 11), "row")
}

func positionRepeated[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	for range 2 {
		to := moved(p, p.Offset+1)
		b.move(p, to, "row")
		for range 2 {
			b.notMoved("a TransactAt that was committed already", p, to, nil)
		}
		p = to
	}
	next := moved(p, 9)
	b.move(p, next, "row")
	b.notMoved("a TransactAt that was committed before the last one", moved(p, 1), p, once.ErrLeaseLost)
	b.wantEffects("row", 3)
}

func positionSet[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	b.move(p, moved(p, 10), "row")
	back := moved(p, 3)
	back.Epoch = 77 // is ignored
	b.must("SetPosition", b.positions(1).SetPosition(b, back))
	back.Epoch = p.Epoch + 1
	b.wantStored("SetPosition", back)
	b.notMoved("TransactAt by whoever had the row open", moved(p, 10), moved(p, 11), once.ErrLeaseLost)
	b.notMoved("TransactAt from the new position, in the old epoch", moved(p, 3), moved(p, 4), once.ErrLeaseLost)

	fresh := moved(store.Position{Consumer: b.consumer("new"), Partition: "0"}, 5)
	b.must("SetPosition", b.positions(1).SetPosition(b, fresh))
	fresh.Epoch = b.stored(fresh).Epoch + 1
	if got := b.open(fresh.Consumer, "0"); got != fresh || got.Epoch < 2 {
		b.failf("after SetPosition of a row that was never written, OpenPosition returned %+v, want %+v", got, fresh)
	}
	b.must("SetPosition", b.positions(1).SetPosition(b, store.Position{Consumer: fresh.Consumer, Partition: "0"}))
	nowhere := store.Position{Consumer: fresh.Consumer, Partition: "0", Epoch: fresh.Epoch + 1}
	b.wantStored("SetPosition to nowhere", nowhere)
}

func positionExact[Tx any](b *txBench[Tx]) {
	consumer := b.consumer("")
	consumer += strings.Repeat("x", 255-len(consumer))
	rows := make(map[string]store.Position)
	for i, name := range b.hardNames() {
		p := b.open(consumer, name)
		to := p
		to.Log, to.Offset = name, []int64{0, -1, 1, math.MaxInt64, math.MinInt64, 1<<53 + 1}[i%6]
		for j := range to.Digest {
			to.Digest[j] = byte(i*16 + j + 0xf8)
		}
		b.move(p, to, "row")
		rows[name] = to
	}
	for _, want := range rows {
		b.wantStored("moves of partitions with other names", want)
	}
	b.open(consumer[:254], "a") // a different name
	b.wantStored("OpenPosition of a shorter name", rows["a"])
}

func positionLists[Tx any](b *txBench[Tx]) {
	c := b.consumer("a")
	want := []string{"", "0", "1", "10", "2", "A", "a", "ä"}
	for _, i := range []int{4, 2, 7, 0, 3, 6, 1, 5} {
		b.open(c, want[i])
		b.open(c+" ", "other")
	}
	all, err := b.positions(1).Positions(b, c)
	b.must("Positions", err)
	var got []string
	for _, p := range all {
		if p.Consumer != c {
			b.failf("the positions of %q have one of %q", c, p.Consumer)
		}
		got = append(got, p.Partition)
	}
	if !slices.Equal(got, want) {
		b.failf("the partitions are %q, want %q", got, want)
	}
}

func positionKeys[Tx any](b *txBench[Tx]) {
	p := b.open(b.consumer("a"), "0")
	r := b.request(b.key("1"), "me", long)
	body := func(tx Tx) error {
		recs, err := b.txStore.ClaimTx(b, tx, []once.ClaimRequest{r})
		if err != nil {
			return err
		}
		return b.txStore.SettleTx(b, tx, []once.Settlement{done(fenceOf(recs[0]))})
	}
	no := &cause{"no"}
	err := b.positions(0).TransactAt(b, p, moved(p, 1), func(tx Tx) error { return errors.Join(body(tx), no) })
	if b.wantErr("TransactAt", err, no); errors.Is(err, once.ErrLeaseLost) {
		b.failf("TransactAt: %v", err)
	}
	if rec := b.get(r.Key); !isZero(rec) {
		b.failf("a transaction that was rolled back left %s", show(rec))
	}
	b.must("TransactAt", b.positions(0).TransactAt(b, p, moved(p, 1), body))
	b.wantStatus(r.Key, once.Done)
	b.wantStored("TransactAt", moved(p, 1))
}

// positionRace repeats each competitor's call while it returns a conflict.
func positionRace[Tx any](b *txBench[Tx]) {
	const n = 16
	p := b.open(b.consumer("a"), "0")
	for i := range 3 {
		to := moved(p, int64(i))
		var ran atomic.Int32
		b.together(n, func(who int) {
			b.persist("TransactAt", func() error {
				return b.positions(who).TransactAt(b, p, to, func(tx Tx) error {
					ran.Add(1)
					return b.effect(tx, fmt.Sprint("row ", i))
				})
			})
		})
		b.wantEffects(fmt.Sprint("row ", i), 1)
		b.wantStored("a race", to)
		p = to
	}
}
