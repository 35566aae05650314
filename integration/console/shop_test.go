//go:build linux

package console

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/console"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/sqlstore"
)

// The people, by what they may do.
const (
	looker   = "looker-0123456789abcdefghij"
	ann      = "ann-0123456789abcdefghijklm"
	bob      = "bob-0123456789abcdefghijklm"
	chief    = "chief-0123456789abcdefghijk"
	password = "sesame-of-the-card-4242"
)

// shop is a store with a console on it.
type shop struct {
	t     *testing.T
	store once.Store
	pool  *engines.Pool
	at    string // of the console
	serve http.Handler
	log   *journal
}

// journal is a log that tests read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(line)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// onEach runs a test on SQLite and on PostgreSQL.
func onEach(t *testing.T, test func(t *testing.T, s *shop)) {
	for _, name := range []string{engines.SQLite, engines.PGStore} {
		t.Run(name, func(t *testing.T) { test(t, newShop(t, name, nil)) })
	}
}

// newShop opens a shop in a new database. through changes the address that its store
// connects to.
func newShop(t *testing.T, name string, through func(place engines.Place) engines.Place) *shop {
	t.Helper()
	testenv.Browser(t)
	place := engines.New(t, name)
	if through != nil {
		place = through(place)
	}
	pool, err := place.Open(8)
	proof.Must(t, err)
	t.Cleanup(pool.Close)
	s := &shop{t: t, pool: pool, log: new(journal)}
	if place.Postgres() {
		of := pgstore.New(pool.PGX, nil)
		proof.Must(t, of.Migrate(t.Context()))
		s.store = of
	} else {
		of := sqlstore.New(pool.SQL, pool.Dialect, nil)
		proof.Must(t, of.Migrate(t.Context()))
		s.store = of
	}
	s.show(nil)
	return s
}

// show opens a console. change changes its options. Later tabs are of that one.
func (s *shop) show(change func(*console.Options)) {
	s.t.Helper()
	o := console.Options{
		Stores: []console.Store{{Name: "shop", Store: s.store, Doctor: doctor, Duplicates: func() int64 { return 42 },
			Ask: []reconcile.Operation{reconcile.Of(&once.Operation[map[string]string]{Name: "charge", Lookup: provider})}}},
		People: []console.Person{{Name: "looker", Role: console.Look, Token: looker}, {Name: "ann", Role: console.Decide, Token: ann},
			{Name: "bob", Role: console.Decide, Token: bob}, {Name: "chief", Role: console.Administer, Token: chief}},
		Write: true,
		Links: []console.Link{{Text: "Trace", URL: "https://traces.example/search?once.key={key}"}},
		Log:   slog.New(slog.NewTextHandler(s.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	c, err := console.New(o)
	proof.Must(s.t, err)
	s.t.Cleanup(c.Close)
	s.serve = c
	web := httptest.NewServer(c)
	s.t.Cleanup(web.Close)
	s.at = web.URL
}

// provider is the other system: it has the charges of orders whose number is even.
func provider(_ context.Context, k once.Key) (charge map[string]string, happened bool, err error) {
	last := k.ID[len(k.ID)-1]
	if last < '0' || last > '9' {
		return nil, false, errors.New("the provider is down for maintenance")
	}
	return map[string]string{"charge": "ch_" + k.ID}, last%2 == 0, nil
}

// doctor finds something of each severity.
func doctor(context.Context) ([]console.Finding, error) {
	return []console.Finding{
		{Name: "synchronous_commit-off", Severity: console.Unsafe, What: "synchronous_commit is off.", Means: "A crash of the server undoes the last commits. Work whose key is lost runs again.",
			Do: "Set synchronous_commit = on for this role and the roles of your programs."},
		{Name: "unknown-old", Severity: console.Warning, What: "3 keys are unknown for more than an hour.", Means: "Nobody asks about them.", Do: "Settle them with once unknown decide."},
		{Name: "recovery-off", Severity: console.Note, What: "Point-in-time recovery is off.", Means: "A mistake cannot be undone.", Do: "Turn it on."},
	}, nil
}

// open opens the console for somebody.
func (s *shop) open(token string) *tab {
	s.t.Helper()
	b := open(s.t, s.at)
	if token != "" {
		b.signIn(token)
	}
	return b
}

// order handles an order: its outcome has a password in it, and it puts a message.
func (s *shop) order(id string) once.Key {
	s.t.Helper()
	return s.orderWith(id, nil)
}

// orderWith handles an order whose message has a header.
func (s *shop) orderWith(id string, header map[string]string) once.Key {
	s.t.Helper()
	op := &once.Operation[map[string]string]{Name: "order"}
	m := &broker.Message{ID: "m-" + id, Topic: "order.placed", OrderingKey: id, Body: []byte(`{"order":"` + id + `"}`), Header: header}
	answer := map[string]string{"order": id, "card": password}
	var err error
	if of, ok := s.store.(*pgstore.Store); ok {
		_, err = once.DoTx(s.t.Context(), of, op.For(id), func(ctx context.Context, tx pgx.Tx) (map[string]string, error) {
			return answer, outbox.New(of, nil).Put(ctx, tx, m)
		})
	} else {
		of := s.store.(*sqlstore.Store)
		_, err = once.DoTx(s.t.Context(), of, op.For(id), func(ctx context.Context, tx *sql.Tx) (map[string]string, error) {
			return answer, outbox.New(of, nil).Put(ctx, tx, m)
		})
	}
	proof.Must(s.t, err)
	return once.Key{Operation: "order", ID: id}
}

// charge leaves a charge whose outcome nobody knows.
func (s *shop) charge(k once.Key) once.Key {
	s.t.Helper()
	return s.bring(k, once.Unknown, "read tcp 10.0.0.7:443: connection reset by peer")
}

// bring leaves a key in a state.
func (s *shop) bring(k once.Key, to once.Status, reason string) once.Key {
	s.t.Helper()
	r := once.ClaimRequest{Fence: once.Fence{Key: k, Owner: k.UUID()}, Lease: time.Hour}
	rec, err := s.store.Claim(s.t.Context(), r)
	proof.Must(s.t, err)
	if to != once.Running {
		proof.Must(s.t, s.store.Settle(s.t.Context(), once.Settlement{Fence: once.Fence{Key: k, Owner: rec.Owner, Attempt: rec.Attempt},
			Status: to, Reason: reason, KeepOutcome: time.Hour, KeepKey: time.Hour}))
	}
	return k
}

// status returns how a key stands.
func (s *shop) status(k once.Key) once.Record {
	s.t.Helper()
	rec, err := s.store.Get(s.t.Context(), k)
	proof.Must(s.t, err)
	return rec
}

// fill fills the shop with what people see on an ordinary bad day.
func (s *shop) fill() {
	s.t.Helper()
	for i := range 12 {
		s.order(fmt.Sprint("order-", 4700+i))
	}
	for i := range 3 {
		s.charge(once.Key{Scope: "tenant-7", Operation: "pay/charge", ID: fmt.Sprint("order-", 4710+i)})
	}
	s.bring(once.Key{Operation: "mail", ID: "order-4703"}, once.Parked, "the mail server has forgotten the key")
	s.bring(once.Key{Operation: "mail", ID: "order-4709"}, once.Running, "")
	s.bring(once.Key{Scope: "tenant-7", Operation: "pay", ID: "order-4711"}, once.Unknown, "the worker was killed")
	shelf, ok := once.As[store.Shelf](s.store)
	if !ok {
		s.t.Fatal("the store has no shelf")
	}
	proof.Must(s.t, shelf.Shelve(s.t.Context(), []store.Shelved{{Consumer: "billing", Message: broker.Message{ID: "m-order-4701", Topic: "order.placed",
		OrderingKey: "order-4701", Body: []byte(`{"order":"order-4701"}`)}, State: store.Parked, Attempts: 10, Reason: "no such customer"}}))
}

// link returns the path of a key's page.
func link(k once.Key) string {
	q := []string{"store=shop"}
	for _, p := range [][2]string{{"scope", k.Scope}, {"operation", k.Operation}, {"id", k.ID}} {
		if p[1] != "" {
			q = append(q, p[0]+"="+url.QueryEscape(p[1]))
		}
	}
	return "/key?" + strings.Join(q, "&")
}
