//go:build linux

package consume

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
)

// TestCrashAroundTheAck kills a process between its commit and its Ack, and
// after its Ack. The next process recognises what was handled.
func TestCrashAroundTheAck(t *testing.T) {
	for _, engine := range []string{pgStore, sqlite} {
		for _, shape := range []plan{{Shape: shapeTx}, {Shape: shapeBatch}, {Shape: shapeBatch, Check: true}} {
			for _, sent := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s checkpoint=%v sent=%v", engine, shape.Shape, shape.Check, sent), func(t *testing.T) {
					p := shape
					p.AckDies, p.AckDiesIn = !sent, sent
					crashAroundTheAck(t, engine, p)
				})
			}
		}
	}
}

func crashAroundTheAck(t *testing.T, engine string, p plan) {
	const n = 6
	w := newWorldOn(t, engine)
	o := openOffice(t, p.kindOfLog(), p.Check)
	o.publish(t, plainMessagesOf(o, n))
	p.Base, p.Post, p.Calls, p.Name = w.Place, o.post, filepath.Join(t.TempDir(), "calls"), "first"
	first := fleet.Start(t, p)
	<-first.Ended()
	if !first.WasKilled() {
		t.Fatalf("it did not come to an Ack: %s", first.Complaints())
	}
	done := len(w.counts(t))
	if done == 0 {
		t.Error("nothing was committed before the first Ack")
	}
	p.AckDies, p.AckDiesIn, p.Name = false, false, "second"
	second := fleet.Start(t, p)
	w.handled(t, n)
	await(t, "nothing is left at the broker", func() bool { return o.idle(t) })
	second.Leave(t)
	w.onceEach(t, n)
}

// kindOfLog is a kind of broker that suits the plan.
func (p plan) kindOfLog() string {
	if p.Check {
		return kafka
	}
	return natsJS
}

func plainMessagesOf(o *office, n int) (ms []*broker.Message) {
	for _, m := range notes(0, n, note{Kind: plain, Ord: "k"}) {
		m.Topic = o.topic
		ms = append(ms, m)
	}
	return ms
}

// TestZombie stops a process before it moves its position, until another
// process has its partition and has opened the position. When the first process
// continues, its commit is refused, although nothing else was committed.
func TestZombie(t *testing.T) {
	for _, engine := range []string{pgStore, sqlite} {
		t.Run(engine, func(t *testing.T) {
			w := newWorldOn(t, engine)
			o := openKafka(t, 1)
			p := plan{Base: w.Place, Post: o.post, Calls: filepath.Join(t.TempDir(), "calls"), Shape: shapeBatch, Check: true}
			p.Name, p.Stops = "zombie", true
			zombie := fleet.Start(t, p)
			all := plainMessagesOf(o, 2*batch)
			o.publish(t, all[:1])
			w.handled(t, 1)
			o.publish(t, all[1:])
			zombie.Hear(t, saysStopped)
			zombie.Stop(t)

			p.Name, p.Stops, p.StopsNow = "heir", false, true
			heir := fleet.Start(t, p)
			epoch := heir.Hear(t, saysStopped)
			zombie.Signal(syscall.SIGCONT)
			zombie.Tell(t)
			zombie.Leave(t) // it ends what it has begun
			if n := len(w.counts(t)); n != 1 {
				t.Errorf("%d messages were handled while the heir had the position (%s)", n-1, epoch)
			}
			if said := zombie.Complaints(); !strings.Contains(said, "another owner") {
				t.Errorf("the zombie was not told: %s", said)
			}
			heir.Tell(t)
			w.handled(t, len(all))
			heir.Leave(t)
			w.onceEach(t, len(all))
			w.inOrder(t)
		})
	}
}

// TestDeadlyMessage: a message kills the processes that handle it. It is parked
// after as many deaths as it has attempts, and one more for the first delivery of
// each copy that the broker has, wherever it is in a batch. All other messages are
// handled. With ONCE_SOAK, it is at more places of a large batch.
func TestDeadlyMessage(t *testing.T) {
	const n, large = 80, 64
	soak := proof.Soaking(t) > 0
	type trial struct {
		plan
		place int
	}
	trials := make(map[string]trial)
	var names []string
	for shape, places := range map[plan][]int{
		{Shape: shapeTx}: {n / 2}, {Shape: shapeBatch}: {n / 2}, {Shape: shapeBatch, Check: true}: {n / 2},
		{Shape: shapeBatch, Batch: large}: {21, 0, 63}, {Shape: shapeTx, Check: true, Batch: large}: {63, 0, 21},
	} {
		if !soak {
			places = places[:1]
		}
		for _, place := range places {
			name := fmt.Sprintf("%s checkpoint=%v batch=%d place=%d", shape.Shape, shape.Check, cmp.Or(shape.Batch, batch), place)
			names, trials[name] = append(names, name), trial{shape, place}
		}
	}
	proof.Beside(t, 2, names, func(t *testing.T, name string) {
		shape, place := trials[name].plan, trials[name].place
		ms := notes(0, n, note{Kind: plain})
		ms[place] = note{Kind: deadly}.message("", "deadly")
		shape.dies(t, sqlite, shape.kindOfLog(), ms)
	})
}

// TestTheDeathOfAProcessIsNobodyElsesFault: messages that are handled beside
// one that kills die with it each time, because they are slow. None of them is
// parked.
func TestTheDeathOfAProcessIsNobodyElsesFault(t *testing.T) {
	for _, shape := range []plan{{Shape: shapeTx}, {Shape: shapeBatch, Batch: 1}} {
		t.Run(shape.Shape, func(t *testing.T) {
			ms := notes(0, 3, note{Kind: slow})
			ms[1] = note{Kind: fatal}.message("", "deadly")
			shape.dies(t, pgStore, kafka, ms) // where they are at work at the same time
		})
	}
}

// dies checks what happens to messages of which one is deadly.
func (p plan) dies(t *testing.T, engine, kind string, ms []*broker.Message) {
	w := newWorldOn(t, engine)
	o := openOffice(t, kind, p.Check)
	for _, m := range ms {
		m.Topic = o.topic
	}
	p.Base, p.Post, p.Calls = w.Place, o.post, filepath.Join(t.TempDir(), "calls")
	copies := o.publish(t, ms)["deadly"]
	f := startFleet(t, p, 1)
	w.handled(t, len(ms)-1)
	await(t, "it is parked", func() bool { return len(w.shelf(t, store.Parked)) == 1 })
	f.Stop()
	w.onceEach(t, len(ms)-1)
	if all := w.shelf(t); len(all) != 1 || all[0].Message.ID != "deadly" {
		t.Errorf("on the shelf is %+v", all)
	}
	deaths := f.Deaths()
	if deaths < attempts || deaths > attempts+copies {
		t.Errorf("%d processes have died of a message with %d attempts, of which the broker has up to %d copies", deaths, attempts, copies)
	}
	t.Logf("%d processes have died of a message with %d attempts", deaths, attempts)
}
