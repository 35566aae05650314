//go:build linux

package publish

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/store"
)

// endings has one Ending per engine, so that each is tested.
var endings = map[string]store.Ending{
	pgTable: store.Archive, pgRows: store.Keep, mariaDB: store.Keep, sqlite: store.Archive,
}

// shop has producers and relays of one database.
type shop struct {
	*world
	press     *press
	chance    *rand.Rand
	then      store.Ending
	producers *fleet.Fleet
	relays    *fleet.Fleet
}

func openShop(t *testing.T, engine string, seed uint64, lease time.Duration, w workload) *shop {
	s := &shop{world: newWorldOn(t, engine), press: newPress(t, seed), chance: rand.New(rand.NewPCG(seed, 1)),
		then: endings[engine]}
	if engine == sqlite { // which has one writer at a time
		w.Long = min(w.Long, 200*time.Millisecond)
	}
	p := plan{Base: s.Place, Press: s.press.url, Then: s.then, Lease: lease, Work: w, Seed: seed}
	p.Role = roleRelay
	s.relays = startFleet(t, p, 3)
	p.Role = roleProducer
	s.producers = startFleet(t, p, 2)
	return s
}

// settle stops the producers, waits until all messages are published, and
// judges.
func (s *shop) settle(t *testing.T, doubles bool) verdict {
	t.Helper()
	s.producers.Stop()
	s.press.set(false, nil)
	made := s.made(t)
	ids := make([]string, len(made))
	for i, o := range made {
		ids[i] = o.id
	}
	defer func() {
		if t.Failed() {
			t.Logf("%v; the last words of relays: %s\nand of producers: %s", judge(made, s.press.all()), s.relays.LastWords(),
				s.producers.LastWords())
		}
	}()
	settled(t, patience, func() []string { return append(s.press.missing(ids...), s.waiting(t)...) })
	s.relays.Stop()
	v := judge(made, s.press.all())
	v.check(t, doubles)
	s.checkRows(t, len(made))
	return v
}

// checkRows checks that each row was deleted, kept or archived once.
func (s *shop) checkRows(t *testing.T, made int) {
	t.Helper()
	kept := s.count(t, "SELECT count(*) FROM "+table)
	archived := s.count(t, "SELECT count(*) FROM once_outbox_archive")
	want := map[store.Ending][2]int{store.Delete: {0, 0}, store.Keep: {made, 0}, store.Archive: {0, made}}[s.then]
	if got := [2]int{kept, archived}; got != want {
		t.Errorf("%d rows are left and %d archived, not %v", kept, archived, want)
	}
}

// enough is how many messages each of these tests has to commit to prove
// something.
const enough = 100

// storm disturbs at least least times, for at least length, and until enough
// messages were published by at least relays relays. It follows the pace of the
// machine.
func (s *shop) storm(t *testing.T, length time.Duration, least, relays int, disturb func()) {
	t.Helper()
	begun := time.Now()
	for times := 0; times < least || s.press.different() < enough || s.press.relays() < relays || time.Since(begun) < length; times++ {
		before, since := s.press.different(), time.Now()
		pause(50*time.Millisecond + time.Duration(s.chance.IntN(400))*time.Millisecond)
		disturb()
		for s.press.different() < before+5 && time.Since(since) < 2*time.Second {
			pause(20 * time.Millisecond)
		}
		if time.Since(begun) > length+patience {
			t.Errorf("only %d messages were published, by %d relays: this proves little", s.press.different(), s.press.relays())
			return
		}
	}
}

// TestNothingIsLostWhenProcessesAreKilled kills producers and relays at random, while the press loses replies.
func TestNothingIsLostWhenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	length := max(4*time.Second, soaking(t)/time.Duration(len(allEngines)))
	beside(t, len(allEngines), allEngines, func(t *testing.T, engine string) {
		s := openShop(t, engine, seed, 2500*time.Millisecond,
			workload{Pause: 20 * time.Millisecond, Long: 1500 * time.Millisecond})
		s.press.set(true, nil)
		s.storm(t, length, 8, 1, func() {
			if s.chance.IntN(3) == 0 {
				s.producers.Kill(s.chance.IntN(2))
			} else {
				s.relays.Kill(s.chance.IntN(3))
			}
		})
		v := s.settle(t, true)
		t.Logf("%v; %d relays and %d producers killed, %d replies lost of %d", v, s.relays.Deaths(), s.producers.Deaths(),
			s.press.lost, s.press.calls)
	})
}

// TestNothingIsSentTwiceWithoutFaults stops and starts relays in order. The
// hand-over of lanes and of the log repeats no message.
func TestNothingIsSentTwiceWithoutFaults(t *testing.T) {
	t.Parallel()
	seed := newSeed(t)
	length := max(4*time.Second, soaking(t)/time.Duration(len(allEngines)))
	beside(t, 3, allEngines, func(t *testing.T, engine string) {
		s := openShop(t, engine, seed, 10*time.Second, workload{Pause: 15 * time.Millisecond, Long: time.Second})
		s.storm(t, length, 6, 2, func() { s.relays.Relieve(s.chance.IntN(3)) })
		v := s.settle(t, false)
		t.Logf("%v; %d relays were at work, and %d of them published", v, s.relays.Started(), s.press.relays())
	})
}
