//go:build linux

package consume

import (
	"fmt"
	"math/bits"
	"os"
	"strings"
	"testing"

	"github.com/effectively-once/once/store"
)

// verdict counts what happened to the messages of a script.
type verdict struct {
	published, repeats       int // messages
	delivered, again         int // deliveries, and those of what was delivered before
	deaths, parked, replayed int
	doubled, lost, unordered int
	worstDeadly              int // attempts at the message that kills
}

func (v verdict) String() string {
	return fmt.Sprintf("%d messages (%d of them twice), %d deliveries (%d of them again), %d kills, "+
		"%d parked, %d replayed; %d doubled, %d lost, %d out of order; the deadly one had %d attempts",
		v.published, v.repeats, v.delivered, v.again, v.deaths, v.parked, v.replayed,
		v.doubled, v.lost, v.unordered, v.worstDeadly)
}

// judge checks everything after all processes have stopped.
func (k *soak) judge(t *testing.T) verdict {
	v := verdict{published: len(k.script.messages), repeats: k.script.repeats, deaths: k.fleet.Deaths(),
		replayed: k.replayed}
	if k.repeats {
		v.published += len(k.script.harmless())
		v.repeats += len(k.script.harmless())
	}
	arrived := tally(t, k.calls+deliveries)
	for _, n := range arrived {
		v.delivered += n
		v.again += n - 1
	}
	k.judgeEach(t, &v)
	k.judgeOrder(t, &v)
	k.judgeVersions(t)
	k.judgeAttempts(t, &v)
	return v
}

// tally counts equal lines.
func tally(t *testing.T, file string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	n := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		n[strings.TrimSpace(line)]++
	}
	return n
}

// judgeEach checks the end of each message.
func (k *soak) judgeEach(t *testing.T, v *verdict) {
	count := make(map[string]int)
	for _, e := range k.done(t) {
		count[e.id]++
	}
	shelved := make(map[string]store.Shelved)
	for _, m := range k.world.shelf(t, store.Parked, store.Waiting) {
		shelved[k.nameOf(m)] = m
		if m.State == store.Parked {
			v.parked++
		}
	}
	for name, n := range k.script.want {
		m, aside := shelved[name]
		if count[name] > 1 {
			v.doubled++
			t.Errorf("%s was doubled: it was handled %d times", name, count[name])
		}
		if count[name] == 0 && !aside {
			v.lost++
			t.Errorf("%s is lost: it is neither handled nor on the shelf", name)
		}
		if count[name] > 0 && m.State == store.Parked {
			t.Errorf("%s was handled, and is parked: %s", name, m.Reason)
		}
		if wrong := k.wrongEnd(n, m, aside); wrong != "" {
			t.Errorf("%s %s: %+v", name, wrong, m)
		}
	}
}

const mayEnd = "it may end its process" // in the reason of what was begun too often

// wrongEnd returns what is wrong with the end of a message, or an empty text.
func (k *soak) wrongEnd(n note, m store.Shelved, aside bool) string {
	switch {
	case (n.Kind == poison || n.gap() > 0) && m.State == store.Parked && strings.Contains(m.Reason, mayEnd):
		// Other kills have ended processes while they had it.
	case n.Kind == poison && (m.State != store.Parked || !strings.Contains(m.Reason, "poison")):
		return "should be parked with its reason"
	case n.Kind == deadly && (m.State != store.Parked || !strings.Contains(m.Reason, mayEnd)):
		return "should be parked because it ends its process"
	case n.gap() > 0 && (m.State != store.Parked || !strings.Contains(m.Reason, "version")):
		return "should be parked, because a version is missing"
	case n.Kind == plain && n.Ord == poisonKey && !k.inOrder: // some may have overtaken it
	case n.Kind == plain && n.Ord == poisonKey:
		if aside == k.pass || aside && m.State != store.Waiting {
			return "should wait behind a parked one, or pass it"
		}
	case (n.Kind == plain || n.Kind == flaky || n.Kind == event && n.gap() < 0) && aside:
		return "should be handled"
	}
	return ""
}

// judgeOrder checks that the messages of a key were handled one after another, in order.
func (k *soak) judgeOrder(t *testing.T, v *verdict) {
	if !k.inOrder {
		return
	}
	last := make(map[string]effect)
	for _, e := range k.done(t) {
		if e.ord == "" {
			continue
		}
		if before := last[e.ord]; e.seq <= before.seq {
			v.unordered++
			t.Errorf("of %s, number %d was handled after %d: %+v after %+v", e.ord, e.seq, before.seq, e, before)
		}
		last[e.ord] = e
	}
}

// judgeVersions checks that no projection went back or skipped a version.
func (k *soak) judgeVersions(t *testing.T) {
	if k.shape == shapeDo {
		return
	}
	have := make(map[string]int64)
	for _, e := range k.world.effects(t, "applied") {
		if e.seq != have[e.ord]+1 {
			t.Errorf("%s went from version %d to %d", e.ord, have[e.ord], e.seq)
		}
		have[e.ord] = e.seq
	}
	for i := range items {
		item, want := fmt.Sprintf("item%d", i), int64(versions)
		if i == items-1 {
			want = gapAt - 1
		}
		if have[item] != want {
			t.Errorf("%s is at version %d and not at %d", item, have[item], want)
		}
	}
}

// judgeAttempts checks that attempts are limited. A handler may be called more
// often: a batch that fails is divided, and an attempt that a kill ends may be
// uncounted.
func (k *soak) judgeAttempts(t *testing.T, v *verdict) {
	halvings := 0
	if k.shape == shapeBatch || k.check {
		halvings = bits.Len(batch) - 1
	}
	fails := ((attempts+1)*(1+k.rounds) + 2*(v.deaths+1)) * (1 + halvings)
	dies := (attempts + 2 + halvings) * (1 + halvings)
	for id, n := range tally(t, k.calls) {
		switch kind := k.script.ids[id].Kind; {
		case kind == poison && n > fails:
			t.Errorf("%s was tried %d times, the bound is %d", id, n, fails)
		case kind == deadly:
			v.worstDeadly = max(v.worstDeadly, n)
			if n > dies {
				t.Errorf("%s has killed %d processes, the bound is %d", id, n, dies)
			}
		}
	}
}
