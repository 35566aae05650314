//go:build linux

// Package galera tests the store in a MariaDB Galera cluster of three nodes, all
// of which are written to.
package galera

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/integration/server"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/go-sql-driver/mysql"
)

func TestMain(m *testing.M) {
	_ = mysql.SetLogger(&mysql.NopLogger{}) // connections are lost on purpose
	logtest.Main(m)
}

// cluster is a cluster with the tables of the store, and one for the rows of work.
type cluster struct {
	nodes []*server.Instance
}

// settings are those that the guide asks for.
const settings = "?wsrep_sync_wait=7&timeout=2s&readTimeout=30s"

func start(t *testing.T) *cluster {
	t.Helper()
	testenv.Galera(t)
	server.Need(t, server.MariaDB, server.Galera)
	begun := time.Now()
	nodes, err := server.StartGalera(t.Context())
	proof.Must(t, err)
	t.Logf("the cluster was ready after %v", time.Since(begun).Round(time.Second))
	t.Cleanup(func() {
		for _, n := range nodes {
			proof.Must(t, n.Stop())
		}
	})
	c := &cluster{nodes}
	db := c.open(t, 0, settings)
	s := sqlstore.New(db, sqlstore.MySQL, nil)
	proof.Must(t, s.Migrate(t.Context()))
	if p, err := s.AppearRelay(t.Context()); p != nil || err != nil {
		t.Errorf("a relay appeared by a lock that other nodes do not see: %v, %v", p, err)
	}
	_, err = db.ExecContext(t.Context(), `CREATE TABLE effect (nr BIGINT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(64) NOT NULL)`)
	proof.Must(t, err)
	return c
}

func (c *cluster) open(t testing.TB, node int, settings string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", c.nodes[node].DSN()+settings)
	proof.Must(t, err)
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// counts returns how often each name was written.
func counts(t *testing.T, db *sql.DB) map[string]int {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT name, count(*) FROM effect GROUP BY name`)
	proof.Must(t, err)
	defer rows.Close()
	found := make(map[string]int)
	for rows.Next() {
		var name string
		var n int
		proof.Must(t, rows.Scan(&name, &n))
		found[name] = n
	}
	proof.Must(t, rows.Err())
	return found
}

// judge compares effects with the units of work that were acknowledged.
func judge(t *testing.T, units int, found map[string]int) {
	t.Helper()
	doubled, lost := 0, 0
	for i := range units {
		n := found[fmt.Sprint(i)]
		doubled, lost = doubled+max(n-1, 0), lost+max(1-n, 0)
	}
	t.Logf("%d units: %d doubled, %d lost", units, doubled, lost)
	if doubled+lost > 0 {
		t.Error("effects were doubled or lost")
	}
}

// ledger is another system, which can be asked.
type ledger struct {
	mu   sync.Mutex
	done map[string]int
}

func (l *ledger) do(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done[id]++
}

func (l *ledger) lookUp(_ context.Context, k once.Key) (string, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return "paid " + k.ID, l.done[k.ID] > 0, nil
}

// Workers at all nodes deliver the same units of work at once. Meanwhile a node
// is killed, and comes back.
func TestRivalsAtAllNodes(t *testing.T) {
	c := start(t)
	const workers, units = 6, 120
	l := &ledger{done: make(map[string]int)}
	commit := &once.Operation[string]{Name: "commit"}
	call := &once.Operation[string]{Name: "call", Lookup: l.lookUp, Policy: once.Policy{Lease: 3 * time.Second}}
	var stores [][]*sqlstore.Store
	for w := range workers {
		var own []*sqlstore.Store
		for node := range c.nodes {
			db := c.open(t, (w+node)%len(c.nodes), settings)
			own = append(own, sqlstore.New(db, sqlstore.MySQL, &sqlstore.Options{Options: once.Options{Logger: proof.Logger(t)}}))
		}
		stores = append(stores, own)
	}
	var progress, failures atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range units {
				id := fmt.Sprint(i)
				deliver(t, &failures, func(try int) error {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					got, err := once.DoTx(ctx, stores[w][try%3], commit.For(id), func(ctx context.Context, tx *sql.Tx) (string, error) {
						_, err := tx.ExecContext(ctx, `INSERT INTO effect (name) VALUES (?)`, id)
						return "paid " + id, err
					})
					return check("DoTx", id, got, err)
				})
				deliver(t, &failures, func(try int) error {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					defer cancel()
					got, err := once.Do(ctx, stores[w][try%3], call.For(id), func(context.Context, once.Key) (string, error) {
						l.do(id)
						return "paid " + id, nil
					})
					return check("Do", id, got, err)
				})
				progress.Add(1)
			}
		}()
	}
	const all = workers * units
	await := func(n int64) {
		for progress.Load() < n && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
	}
	await(all / 3)
	proof.Must(t, c.nodes[1].Kill())
	await(2 * all / 3)
	proof.Must(t, c.nodes[1].Restart(t.Context()))
	wg.Wait()
	for node := range c.nodes {
		t.Logf("as node %d has them, DoTx:", node)
		judge(t, units, counts(t, c.open(t, node, settings)))
	}
	t.Logf("Do:")
	judge(t, units, l.done)
	t.Logf("%d calls failed and were repeated", failures.Load())
}

// check returns an error that ends the test for a wrong answer.
func check(verb, id, got string, err error) error {
	if err == nil && got != "paid "+id {
		return fmt.Errorf("%w: %s of %s returned %q", errWrong, verb, id, got)
	}
	return err
}

var errWrong = errors.New("wrong answer")

// deliver repeats a delivery, at another node each time, until it succeeds.
func deliver(t *testing.T, failures *atomic.Int64, call func(try int) error) {
	deadline := time.Now().Add(proof.Patience)
	for try := 0; ; try++ {
		err := call(try)
		if err == nil {
			return
		}
		if errors.Is(err, errWrong) || time.Now().After(deadline) {
			t.Errorf("a delivery ended with %v", err)
			return
		}
		if failures.Add(1) < 10 {
			t.Logf("repeated after: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Two transactions on the same row are at two nodes. The one whose COMMIT comes
// later is refused there (1213), and runs again.
func TestACertificationConflictIsRepeated(t *testing.T) {
	c := start(t)
	pay := &once.Operation[int]{Name: "pay"}
	_, err := c.open(t, 0, settings).ExecContext(t.Context(), `INSERT INTO effect (nr, name) VALUES (1, '0')`)
	proof.Must(t, err)
	here, there := sqlstore.New(c.open(t, 0, settings), sqlstore.MySQL, nil), sqlstore.New(c.open(t, 2, settings), sqlstore.MySQL, nil)
	add := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE effect SET name = name + 1 WHERE nr = 1`)
		return err
	}
	runs := 0
	_, err = once.DoTx(t.Context(), here, pay.For("here"), func(ctx context.Context, tx *sql.Tx) (int, error) {
		err := add(ctx, tx)
		if runs++; runs == 1 && err == nil {
			_, err = once.DoTx(t.Context(), there, pay.For("there"), func(ctx context.Context, tx *sql.Tx) (int, error) { return 1, add(ctx, tx) })
		}
		return runs, err
	})
	found := counts(t, c.open(t, 1, settings))
	if err != nil || runs != 2 || found["2"] != 1 {
		t.Errorf("DoTx ran %d times and returned %v; the row is %v", runs, err, found)
	}
}

// A node that is behind reads old records, unless wsrep_sync_wait makes it wait.
func TestANodeThatIsBehind(t *testing.T) {
	c := start(t)
	behind := c.open(t, 2, "")
	conn, err := behind.Conn(t.Context())
	proof.Must(t, err)
	defer conn.Close()
	key := once.Key{Operation: "pay", ID: "1"}
	_, err = sqlstore.New(c.open(t, 2, settings), sqlstore.MySQL, nil).Get(t.Context(), key) // prepares
	proof.Must(t, err)
	waiting, blind := sqlstore.New(c.open(t, 2, settings), sqlstore.MySQL, nil), sqlstore.New(c.open(t, 2, "?wsrep_sync_wait=0"), sqlstore.MySQL, nil)
	for _, s := range []*sqlstore.Store{waiting, blind} {
		_, err = s.Get(t.Context(), once.Key{Operation: "pay", ID: "other"})
		proof.Must(t, err)
	}
	_, err = conn.ExecContext(t.Context(), `FLUSH TABLES WITH READ LOCK`) // it applies nothing from now on
	proof.Must(t, err)
	_, err = sqlstore.New(c.open(t, 0, settings), sqlstore.MySQL, nil).Claim(t.Context(),
		once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Hour})
	proof.Must(t, err)

	if rec, err := blind.Get(t.Context(), key); err != nil || rec.Status != once.Absent {
		t.Errorf("without wsrep_sync_wait, Get returned %v, %v: the node is not behind", rec.Status, err)
	}
	got := make(chan once.Status, 1)
	go func() {
		rec, err := waiting.Get(t.Context(), key)
		if err != nil {
			t.Error(err)
		}
		got <- rec.Status
	}()
	select {
	case status := <-got:
		t.Errorf("with wsrep_sync_wait, Get returned %v from a node that is behind", status)
	case <-time.After(500 * time.Millisecond): // it waits
	}
	_, err = conn.ExecContext(t.Context(), `UNLOCK TABLES`)
	proof.Must(t, err)
	if status := <-got; status != once.Running {
		t.Errorf("with wsrep_sync_wait, Get returned %v", status)
	}
}
