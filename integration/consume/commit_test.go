//go:build linux

package consume

import (
	"fmt"
	"testing"

	"github.com/effectively-once/once/integration/wire"
)

// behind returns a stand on a database behind a proxy, and a direct connection
// to the database.
func behind(t testing.TB, engine string) (s *stand, proxy *wire.Proxy, direct *world) {
	t.Helper()
	direct = newWorldOn(t, engine)
	protocol := wire.MySQL
	if direct.Postgres() {
		protocol = wire.Postgres
	}
	through := direct.Place
	proxy, through.DSN = wire.Between(t, direct.DSN, protocol)
	return newStand(t, openWorld(t, through)), proxy, direct
}

// TestCommitReplyIsLost: the database has committed, but the reply is lost.
// Each message has its effect once.
func TestCommitReplyIsLost(t *testing.T) {
	for _, m := range modes {
		for name, action := range map[string]wire.Action{"reply": wire.SwallowReply, "request": wire.DropRequest} {
			for _, engine := range []string{pgStore, mariaDB} {
				t.Run(fmt.Sprint(m, " ", name, " ", engine), func(t *testing.T) { commitIsLost(t, engine, m, action) })
			}
		}
	}
}

func commitIsLost(t *testing.T, engine string, m mode, action wire.Action) {
	const n = 8
	s, proxy, direct := behind(t, engine)
	c := s.consumer(m)
	c.Concurrency = 1
	stop := run(t, c)
	s.publish(t, notes(0, n, note{Kind: plain})...)
	direct.handled(t, n)
	await(t, "all of it is settled", func() bool { return c.Stats.Handled.Load() == n })
	lost := proxy.On(wire.Runs("commit"), action)
	s.publish(t, notes(n, 2*n, note{Kind: plain})...)
	direct.handled(t, 2*n)
	await(t, "the rest is settled", func() bool { return c.Stats.Handled.Load()+c.Stats.Duplicates.Load() == 2*n })
	must(t, stop())
	direct.onceEach(t, 2*n)
	if lost.Hits() != 1 {
		t.Error("no commit was lost, so nothing was tested")
	}
	if all := direct.shelf(t); len(all) > 0 {
		t.Errorf("on the shelf is %+v", all)
	}
}
