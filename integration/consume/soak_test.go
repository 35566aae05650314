//go:build linux

package consume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
)

// setting is a store, a broker and a kind of handler.
type setting struct {
	name    string
	engine  string
	broker  string
	shape   string
	check   bool // Checkpoint
	keyed   bool // by the business
	pass    bool // OnParked
	repeats bool // messages come twice, which a position alone does not tell
	inOrder bool // the source gives all messages of a key to one process at a time, in order
	size    int  // processes
}

var settings = []setting{
	{"pgstore kafka checkpoint tx", pgStore, kafka, shapeTx, true, false, false, false, true, 3},
	{"pgstore kafka checkpoint key batch", pgStore, kafka, shapeBatch, true, true, false, true, true, 3},
	{"pgstore nats tx", pgStore, natsJS, shapeTx, false, false, true, true, false, 3},
	{"sqlite nats batch", sqlite, natsJS, shapeBatch, false, false, false, true, false, 2},
	{"mariadb rabbit tx", mariaDB, rabbit, shapeTx, false, false, false, true, true, 2},
	{"pgstore rabbit do", pgStore, rabbit, shapeDo, false, false, false, true, false, 2},
	{"sqlite nats log checkpoint", sqlite, natsLg, shapeTx, true, false, false, false, true, 2},
	{"pgstore redis tx", pgStore, redisS, shapeTx, false, false, true, true, false, 3},
	{"pgstore event hubs checkpoint tx", pgStore, hubs, shapeTx, true, false, false, false, true, 3},
	{"sqlite redis batch in order", sqlite, redisA, shapeBatch, false, false, false, true, true, 2},
	{"pgstore sqs tx", pgStore, sqsStd, shapeTx, false, false, true, true, false, 2},
	{"sqlite sqs fifo batch", sqlite, sqsFIF, shapeBatch, false, false, false, true, true, 2},
	{"pgstore pubsub tx in order", pgStore, pubsub, shapeTx, false, false, false, true, true, 3},
	{"sqlite pubsub batch", sqlite, pubsub, shapeBatch, false, false, true, true, false, 2},
	{"pgstore service bus tx", pgStore, azure, shapeTx, false, false, true, true, false, 3},
	{"sqlite service bus batch in sessions", sqlite, azureS, shapeBatch, false, false, false, true, true, 2},
}

const (
	atOnce   = 3 // settings that run beside each other
	kills    = 4
	settling = 90 * time.Second
)

// TestSoak combines all faults. It goes through all settings, and repeats that
// for the time in ONCE_SOAK.
func TestSoak(t *testing.T) {
	seed, end := proof.Seed(t), time.Now().Add(proof.Soaking(t))
	for round := uint64(0); ; round++ {
		t.Run(fmt.Sprint("round ", round), func(t *testing.T) { soakAll(t, seed+round) })
		if t.Failed() || !time.Now().Before(end) {
			return
		}
	}
}

func soakAll(t *testing.T, seed uint64) {
	var names []string
	for _, s := range settings {
		names = append(names, s.name)
	}
	proof.Beside(t, atOnce, names, func(t *testing.T, name string) {
		i := slices.Index(names, name)
		newSoak(t, settings[i], seed, uint64(i)).run(t)
	})
}

// soak runs one setting.
type soak struct {
	setting
	chance *rand.Rand
	seed   uint64
	world  *world
	office *office
	remote *remote
	script *script
	calls  string
	fleet  *fleet.Fleet

	publishing sync.Mutex // nobody is disturbed who publishes: that would write messages twice, or in another order
	replayed   int
	rounds     int // of replays
	abandoned  map[int64]abandoned
}

func newSoak(t *testing.T, s setting, seed, stream uint64) *soak {
	k := &soak{setting: s, seed: seed, abandoned: make(map[int64]abandoned), chance: rand.New(rand.NewPCG(seed, stream))}
	k.world = newWorldOn(t, s.engine)
	for i := range items {
		k.world.Exec(t, fmt.Sprintf("INSERT INTO projection (item, version) VALUES ('item%d', 0)", i))
	}
	k.office = openOffice(t, s.broker, s.inOrder)
	k.remote = openRemote(t, seed)
	k.script = newScript(k.chance, k.office.topic, s)
	k.calls = filepath.Join(t.TempDir(), "calls")
	return k
}

func (k *soak) run(t *testing.T) {
	begun := time.Now()
	k.fleet = startFleet(t, plan{Base: k.world.Place, Post: k.office.post, Calls: k.calls, Shape: k.shape, Pass: k.pass,
		Check: k.check, Keyed: k.keyed, Remote: k.remote.url}, k.size)
	var storm sync.WaitGroup
	storm.Go(func() { k.disturb(t, rand.New(rand.NewPCG(k.seed, k.chance.Uint64()))) })
	k.publishAll(t)
	storm.Wait()
	k.settle(t)
	k.replay(t)
	k.fleet.Kill(0)
	k.settle(t)
	k.remote.heal()
	k.replay(t)
	k.settle(t)
	for i := 0; i < versions && k.curable(t) > 0; i++ {
		k.replay(t)
		k.settle(t)
	}
	if k.repeats { // everything once more, when all of it is dealt with
		k.office.publish(t, k.script.harmless())
	}
	k.await(t, "the source has nothing left", func() bool { return k.office.idle(t) })
	k.settle(t)
	k.fleet.Stop()
	v := k.judge(t)
	t.Logf("%s in %v (%s=%d)", v, time.Since(begun).Round(100*time.Millisecond), proof.SeedVar, k.seed)
}

// publishAll publishes in pieces while the faults happen.
func (k *soak) publishAll(t *testing.T) {
	left := k.script.messages
	chance := rand.New(rand.NewPCG(k.seed, 11))
	for len(left) > 0 {
		n := min(1+chance.IntN(8), len(left))
		k.undisturbed(func() { k.office.publish(t, left[:n]) })
		left = left[n:]
		pause(time.Duration(chance.IntN(200)) * time.Millisecond)
	}
}

// disturb kills processes, and restarts the broker in between.
func (k *soak) disturb(t *testing.T, chance *rand.Rand) {
	for i := range kills {
		pause(300*time.Millisecond + time.Duration(chance.IntN(700))*time.Millisecond)
		k.fleet.Kill(chance.IntN(k.size))
		if i%2 == 1 {
			k.undisturbed(func() { k.office.disturb(t) })
		}
	}
}

// undisturbed does something while nobody else publishes or disturbs.
func (k *soak) undisturbed(do func()) {
	k.publishing.Lock()
	defer k.publishing.Unlock() // also if do ends the goroutine
	do()
}

// replay replays all parked messages that do not kill.
func (k *soak) replay(t *testing.T) {
	q := store.ShelfQuery{Consumer: "soak"}
	for _, m := range k.world.shelf(t, store.Parked) {
		if k.script.ids[m.Message.ID].Kind != deadly {
			q.IDs = append(q.IDs, m.Message.ID)
		}
	}
	k.rounds++
	if len(q.IDs) == 0 {
		return
	}
	// The other system does each key once, so no effect can happen twice there.
	by := inbox.Decision{By: "the soak", Reason: "another try", NotDone: true}
	tally, err := inbox.Admin{Store: k.world.store}.Replay(t.Context(), q, by)
	must(t, err)
	if tally.Changed != len(q.IDs) {
		t.Errorf("of %d parked messages were replayed: %+v", len(q.IDs), tally)
	}
	k.replayed += tally.Changed
}

// curable returns the number of parked messages that can be handled.
func (k *soak) curable(t *testing.T) (n int) {
	for _, m := range k.world.shelf(t, store.Parked) {
		what := k.script.ids[m.Message.ID]
		if what.Kind != deadly && what.Kind != poison && what.gap() < 0 {
			n++
		}
	}
	return n
}

// settle waits until each message is handled or parked, or waits for a parked one.
func (k *soak) settle(t *testing.T) {
	t.Helper()
	left := []string(nil)
	defer func() {
		if t.Failed() && len(left) > 0 {
			t.Logf("open with %s=%d: %v; the last log lines of the consumers: %s", proof.SeedVar, k.seed, left, k.fleet.LastWords())
		}
	}()
	settled(t, settling, func() []string {
		left = k.open(t)
		return left
	})
}

// open returns the names of messages that are neither handled nor parked. The
// shelf leaves a message that a dead process had alone for some time, which passes
// at once here.
func (k *soak) open(t *testing.T) (left []string) {
	dealt := make(map[string]bool)
	for _, e := range k.done(t) {
		dealt[e.id] = true
	}
	held := make(map[string]bool)
	for _, m := range k.world.shelf(t, store.Parked, store.Waiting) {
		name := k.nameOf(m)
		switch {
		case m.State == store.Parked:
			held[m.Message.OrderingKey] = m.Message.OrderingKey != ""
			dealt[name] = true
		case held[m.Message.OrderingKey] && !k.pass:
			dealt[name] = true
		default:
			left = append(left, name+" on the shelf")
			k.hasten(t, m)
		}
	}
	for name := range k.script.want {
		if !dealt[name] {
			left = append(left, name)
		}
	}
	return left
}

// abandoned is when a version of a message on the shelf was first seen.
type abandoned struct {
	version int64
	since   time.Time
}

// hasten makes a message on the shelf due at once if the process that took it
// must be dead.
func (k *soak) hasten(t *testing.T, m store.Shelved) {
	if m.Due < 5*time.Second {
		return
	}
	if a := k.abandoned[m.Seq]; a.version != m.Version {
		k.abandoned[m.Seq] = abandoned{m.Version, time.Now()}
	} else if time.Since(a.since) > 2*time.Second {
		m.Due = 0
		_ = k.world.store.Change(t.Context(), m) // somebody else may have changed it, which is as well
	}
}

// nameOf returns the ID of a message on the shelf that must be handled once.
func (k *soak) nameOf(m store.Shelved) string {
	n := k.script.ids[m.Message.ID]
	return nameOf(&m.Message, n)
}

// done returns what was handled, here or in the other system.
func (k *soak) done(t *testing.T) []effect {
	if k.shape == shapeDo {
		return k.remote.effects()
	}
	return k.world.effects(t, "handled")
}

func (k *soak) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settling)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("could not be checked in time: within %v it did not come true that %s (%s=%d)", settling, what, proof.SeedVar, k.seed)
		}
	}
}
