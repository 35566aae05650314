package httpclients_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/integration/wire"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shopOnPostgres is a handler of HandlerTx in several servers, which share
// nothing but the database.
type shopOnPostgres struct {
	t       *testing.T
	pool    *pgxpool.Pool // past the proxy
	proxy   *wire.Proxy
	url     string
	schema  string
	entered atomic.Int64
	panics  bool          // when a statement fails
	held    chan struct{} // closed: nobody is held up
}

func openShop(t *testing.T, isolation pgx.TxIsoLevel, o *httponce.Options) *shopOnPostgres {
	s := &shopOnPostgres{t: t, schema: "http_" + strings.ToLower(rand.Text()), held: make(chan struct{})}
	close(s.held)
	dsn := testenv.Postgres(t)
	s.pool = connect(t, dsn)
	testenv.CheckPostgres(t, func(query string) (answer string, err error) {
		err = s.pool.QueryRow(t.Context(), query).Scan(&answer)
		return answer, err
	})
	proxy, through := wire.Between(t, dsn, wire.Postgres)
	s.proxy = proxy
	shared := connect(t, through)
	caller := func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil }
	processes := make([]http.Handler, 8)
	for i := range processes {
		store := pgstore.New(shared, &pgstore.Options{Schema: s.schema, Isolation: isolation})
		if err := store.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		processes[i] = httponce.HandlerTx[pgx.Tx](store, caller, s.pay, o)
	}
	t.Cleanup(func() { s.exec(context.Background(), "DROP SCHEMA "+s.schema+" CASCADE") })
	s.exec(t.Context(), "CREATE TABLE "+s.schema+".payment (id text NOT NULL)")
	s.exec(t.Context(), "CREATE TABLE "+s.schema+".balance (cents int NOT NULL)")
	s.exec(t.Context(), "INSERT INTO "+s.schema+".balance VALUES (0)")
	var next atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		processes[int(next.Add(1))%len(processes)].ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func connect(t *testing.T, dsn string) *pgxpool.Pool {
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (s *shopOnPostgres) exec(ctx context.Context, sql string) {
	s.t.Helper()
	if _, err := s.pool.Exec(ctx, sql); err != nil {
		s.t.Error(err)
	}
}

// pay writes its response before its first statement, at which speculation
// stops a duplicate.
func (s *shopOnPostgres) pay(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
	id := rand.Text()
	s.entered.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/payments/"+id)
	status := http.StatusCreated
	if string(body) == "too much" {
		status = http.StatusPaymentRequired
	}
	w.WriteHeader(status)
	fmt.Fprint(w, id)
	if _, err := tx.Exec(r.Context(), "INSERT INTO "+s.schema+".payment VALUES ($1)", id); err != nil {
		if s.panics {
			panic(err)
		}
		return err
	}
	<-s.held
	_, err = tx.Exec(r.Context(), "UPDATE "+s.schema+".balance SET cents = cents + 1")
	return err
}

type paid struct {
	status             int
	id, location, name string
	replayed           bool
}

func (s *shopOnPostgres) send(key, tenant, body string) (p paid) {
	r, err := http.NewRequest(http.MethodPost, s.url+"/payments", strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return p
	}
	r.Header.Set(httponce.KeyHeader, key)
	r.Header.Set("Tenant", tenant)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Error(err)
		return p
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Error(err)
	}
	return paid{resp.StatusCode, string(text), resp.Header.Get("Location"), resp.Header.Get("Content-Type"), httponce.Replayed(resp)}
}

// want checks that the response belongs to the only row.
func (s *shopOnPostgres) want(p paid, status int, rows int) {
	s.t.Helper()
	var n int
	if err := s.pool.QueryRow(context.Background(), "SELECT count(*) FROM "+s.schema+".payment WHERE id = $1", p.id).Scan(&n); err != nil {
		s.t.Error(err)
	}
	if p.status != status || p.location != "/payments/"+p.id || n != rows {
		s.t.Errorf("got %+v, with %d rows", p, n)
	}
}

func (s *shopOnPostgres) wantRows(n int) {
	s.t.Helper()
	var rows, cents int
	err := s.pool.QueryRow(context.Background(), "SELECT (SELECT count(*) FROM "+s.schema+".payment), (SELECT cents FROM "+s.schema+".balance)").Scan(&rows, &cents)
	if err != nil || rows != n || cents != n {
		s.t.Errorf("%d payments, a balance of %d, %v: want %d", rows, cents, err, n)
	}
}

// Of many requests with one key, one enters the handler. With speculation
// others may enter it without effect, and panic there. No client sees that, or
// a header of another run.
func TestPostgresCrowd(t *testing.T) {
	for _, speculative := range []bool{false, true} {
		t.Run(fmt.Sprint("speculative ", speculative), func(t *testing.T) { crowd(t, speculative) })
	}
}

func crowd(t *testing.T, speculative bool) {
	s := openShop(t, "", &httponce.Options{Speculative: speculative, Policy: once.Policy{Wait: 30 * time.Second}})
	s.panics = speculative
	const crowd, keys = 64, 4
	type one struct {
		key string
		paid
	}
	answers := make(chan one, crowd*keys)
	for i := range crowd * keys {
		key := fmt.Sprint("order-", i%keys)
		go func() { answers <- one{key, s.send(key, "acme", "1")} }()
	}
	first := map[string]paid{}
	ran := map[string]int{}
	for range crowd * keys {
		got := <-answers
		s.want(got.paid, http.StatusCreated, 1)
		if known, ok := first[got.key]; ok && known.id != got.id {
			t.Errorf("%s was answered with %s and %s", got.key, known.id, got.id)
		}
		first[got.key] = got.paid
		if !got.replayed {
			ran[got.key]++
		}
	}
	for key, n := range ran {
		if n != 1 {
			t.Errorf("%s was answered first %d times", key, n)
		}
	}
	s.wantRows(keys)
	if n := s.entered.Load(); !speculative && n != keys || speculative && n == keys {
		t.Errorf("%d keys, and the handler was entered %d times", keys, n)
	}
}

// A duplicate that comes while the first runs waits and gets its response.
func TestPostgresWhileRunning(t *testing.T) {
	s := openShop(t, "", nil)
	s.held = make(chan struct{})
	answers := make(chan paid, 3)
	go func() { answers <- s.send("k", "acme", "1") }()
	for deadline := time.Now().Add(testenv.Patience); s.entered.Load() == 0 && time.Now().Before(deadline); {
	}
	go func() { answers <- s.send("k", "acme", "1") }()
	go func() { answers <- s.send("k", "acme", "1") }()
	close(s.held)
	a, b, c := <-answers, <-answers, <-answers
	if a.id != b.id || a.id != c.id {
		t.Errorf("%+v, %+v and %+v", a, b, c)
	}
	s.want(a, http.StatusCreated, 1)
	s.wantRows(1)
}

func TestPostgresKnownKeys(t *testing.T) {
	s := openShop(t, "", nil)
	first := s.send("k", "acme", "1")
	for range 3 {
		if again := s.send("k", "acme", "1"); again.id != first.id || !again.replayed || again.location != first.location || again.name != first.name {
			t.Errorf("%+v, and then %+v", first, again)
		}
	}
	if p := s.send("k", "acme", "2"); p.status != http.StatusUnprocessableEntity {
		t.Errorf("another request under the key: %+v", p)
	}
	if hers := s.send("k", "other", "1"); hers.replayed || hers.id == first.id {
		t.Errorf("another tenant: %+v", hers)
	}
	s.wantRows(2)
	no := s.send("no", "acme", "too much")
	s.want(no, http.StatusPaymentRequired, 0)
	if again := s.send("no", "acme", "too much"); again.id != no.id || !again.replayed || again.status != no.status {
		t.Errorf("%+v, and then %+v", no, again)
	}
	s.wantRows(2)
}

// Whatever is lost between the first statement of the handler and the reply to
// its commit, there is one row and one response.
func TestPostgresLostReplies(t *testing.T) {
	for name, action := range map[string]wire.Action{"request": wire.DropRequest, "reply": wire.SwallowReply, "both sides": wire.LeaveServer} {
		for _, at := range []string{"payment", "balance", "commit"} {
			t.Run(at+"/"+name, func(t *testing.T) {
				s := openShop(t, "", nil)
				s.send("warm", "acme", "1")
				rule := s.proxy.On(wire.Runs(at), action)
				p := s.send("k", "acme", "1")
				for tries := 0; p.status != http.StatusCreated && tries < 20; tries++ { // as a client does
					p = s.send("k", "acme", "1")
				}
				if rule.Hits() != 1 {
					t.Errorf("%d hits", rule.Hits())
				}
				s.want(p, http.StatusCreated, 1)
				if again := s.send("k", "acme", "1"); again.id != p.id || !again.replayed {
					t.Errorf("%+v, and then %+v", p, again)
				}
				s.wantRows(2)
			})
		}
	}
}

// Transactions with serialization failures run again, each with a new response.
func TestPostgresConflicts(t *testing.T) {
	s := openShop(t, pgx.Serializable, nil)
	const n = 16
	sent := 0
	testenv.Await(t, "transactions conflict, and are run again", func() bool { // whether those of one round do is a race
		answers := make(chan paid, n)
		for i := range n {
			go func() {
				key, p := fmt.Sprint(sent+i), paid{}
				for tries := 0; p.status != http.StatusCreated && tries < 20; tries++ { // a store that gives up says 503
					p = s.send(key, "acme", "1")
				}
				answers <- p
			}()
		}
		for range n {
			s.want(<-answers, http.StatusCreated, 1)
		}
		sent += n
		s.wantRows(sent)
		return s.entered.Load() > int64(sent)
	})
}
