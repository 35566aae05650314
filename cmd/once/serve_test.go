//go:build unix

package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// shopFile makes a database with the tables.
func shopFile(t *testing.T) (url string, shop *target.Target) {
	t.Helper()
	url = "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
	shop, err := target.Open(t.Context(), url, &target.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shop.Close() })
	if err := shop.Tables.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return url, shop
}

// put commits messages.
func put(t *testing.T, shop *target.Target, ms ...*broker.Message) {
	t.Helper()
	tx, err := shop.Tables.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := outbox.New(shop.Store.(store.Outbox[*sql.Tx]), nil).Put(t.Context(), tx, ms...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// service is a process of once serve.
type service struct {
	t       *testing.T
	base    string // the URL of its health endpoints
	console string // the address of its console, if it has one
	process *os.Process
	wait    func() error
}

// startService starts one, and waits until it serves.
func startService(t *testing.T, url, config string) *service {
	t.Helper()
	file := filepath.Join(t.TempDir(), "once.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, _ := command(t, "once", "serve", "--config", file, "--url", url, "--listen", "127.0.0.1:0")
	cmd.Env = append(cmd.Env, "HOOK_SECRET="+hookSecret)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := bufio.NewScanner(stderr)
	var all []string
	for log.Scan() {
		all = append(all, log.Text())
		var line struct{ Msg, Address, Console string }
		if json.Unmarshal(log.Bytes(), &line) == nil && line.Msg == "serving" {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.Copy(io.Discard, stderr) // else the process would wait for a reader
			}()
			return &service{t, "http://" + line.Address, line.Console, cmd.Process, func() error { <-done; return cmd.Wait() }}
		}
	}
	t.Fatalf("it does not serve: %v: %s", cmd.Wait(), strings.Join(all, "\n"))
	return nil
}

func (s *service) get(path string) (status int, text string) {
	s.t.Helper()
	answer, err := http.Get(s.base + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// await asks until the text matches.
func (s *service) await(path, pattern string) {
	s.t.Helper()
	want := regexp.MustCompile("(?m)^" + pattern + "$")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testTime)
	for {
		_, text := s.get(path)
		if want.MatchString(text) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%s does not say %s: %s", path, pattern, text)
		}
	}
}

// stop ends it in order.
func (s *service) stop() {
	s.t.Helper()
	if err := s.process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	wantExit(s.t, s.wait(), exitOK)
}

func webhookConfig(url string) string {
	return fmt.Sprintf(`
[webhook]
source = "/shop"
allow = ["127.0.0.0/8"]
allow_http = true
timeout = "1s"
[webhook.default]
url = %q
secrets = ["${HOOK_SECRET}"]
[relay.retry]
attempts = 2
first = "10ms"
`, url)
}

func TestServePublishesWebhooks(t *testing.T) {
	got := make(chan *broker.Message, 100)
	var stall atomic.Bool
	stalled := make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		m, err := webhookbroker.Verify([]string{hookSecret}, r.Header, body, 0)
		if err != nil {
			t.Error(err)
		}
		if string(body) == "never" {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		if stall.Load() {
			close(stalled)
			<-r.Context().Done()
			return
		}
		got <- m
	}))
	defer receiver.Close()
	url, shop := shopFile(t)
	s := startService(t, url, webhookConfig(receiver.URL))
	if status, text := s.get("/healthz"); status != http.StatusOK || text != "live\n" {
		t.Errorf("/healthz: %d %q", status, text)
	}
	if status, text := s.get("/readyz"); status != http.StatusOK || text != "ready\n" {
		t.Errorf("/readyz: %d %q", status, text)
	}
	put(t, shop, &broker.Message{ID: "a", Topic: "order.paid", Body: []byte("{}")},
		&broker.Message{ID: "b", Topic: "order.paid", Body: []byte("never")})
	select {
	case m := <-got:
		if m.ID != "a" || m.Topic != "order.paid" || string(m.Body) != "{}" {
			t.Errorf("another message came: %+v", m)
		}
	case <-time.After(testTime):
		t.Fatal("nothing came")
	}
	s.await("/metrics", `once_outbox_messages_total\{once_name="serve",once_outcome="published"\} 1`)
	s.await("/metrics", `once_outbox_messages_total\{once_name="serve",once_outcome="stuck"\} 1`)
	s.await("/metrics", `once_outbox_depth\{once_name="serve",once_state="pending"\} 0`)
	s.await("/metrics", `once_outbox_depth\{once_name="serve",once_state="stuck"\} 1`)
	s.await("/metrics", `once_store_ready\{once_name="serve"\} 1`)

	// What is on its way may come to its end; here it does when the time for a request is over.
	stall.Store(true)
	put(t, shop, &broker.Message{ID: "c", Topic: "order.paid"})
	<-stalled
	s.stop()
}

func TestServeIsReadyOnlyWithTheTables(t *testing.T) {
	url, shop := shopFile(t)
	s := startService(t, url, "[reconcile]\npark = [\"mail\"]\n")
	s.await("/readyz", "ready")
	if _, err := shop.Tables.DB.ExecContext(t.Context(), "DROP TABLE once_outbox"); err != nil {
		t.Fatal(err)
	}
	s.await("/readyz", "the database does not answer, or its tables do not fit this program: see the log")
	s.await("/metrics", `once_store_ready\{once_name="serve"\} 0`)
	s.stop()
}

func TestServeParksAbandonedWork(t *testing.T) {
	url, shop := shopFile(t)
	serveParks(t, url, shop)
}

func serveParks(t *testing.T, url string, shop *target.Target) {
	t.Helper()
	abandon(t, shop, "mail")
	abandon(t, shop, "charge")
	s := startService(t, url, "[reconcile]\npark = [\"mail\"]\nevery = \"50ms\"\n")
	s.await("/metrics", `once_reconcile_records_total\{once_name="serve",once_outcome="parked"\} 1`)
	s.await("/metrics", `once_unknown_orphaned\{once_name="serve"\} 1`)
	s.stop()
	for operation, want := range map[string]once.Status{"mail": once.Parked, "charge": once.Unknown} {
		rec, err := shop.Store.Get(t.Context(), once.Key{Operation: operation, ID: "7"})
		if err != nil || rec.Status != want {
			t.Errorf("%s: %v, %v, want %v", operation, rec.Status, err, want)
		}
	}
}

// Two processes that ask at once find out the same, and what one of them decides holds.
func TestServeAsks(t *testing.T) {
	url, shop := shopFile(t)
	serveAsks(t, url, shop)
}

func serveAsks(t *testing.T, url string, shop *target.Target) {
	answers := map[string]string{"charge": `"done","result":{"charge":"ch_1"}`, "refund": `"rejected","result":"too late"`,
		"cancel": `"not_found"`, "ship": `"pending"`}
	for operation := range answers {
		abandon(t, shop, operation)
	}
	abandon(t, shop, "push")
	both := make(chan struct{})
	var asked atomic.Int64
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		m, err := webhookbroker.Verify([]string{hookSecret}, r.Header, body, 0)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		var q struct{ Operation, Key string }
		if err := json.Unmarshal(m.Body, &q); err != nil {
			t.Error(err)
		}
		if q.Operation == "charge" {
			if asked.Add(1) == 2 {
				close(both)
			}
			select { // until both have asked about it
			case <-both:
			case <-r.Context().Done():
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"answer":%s,"key":%q}`, answers[q.Operation], q.Key)
	}))
	defer provider.Close()
	config := "[reconcile]\nevery = \"50ms\"\nallow = [\"127.0.0.0/8\"]\nallow_http = true\ntimeout = \"1m\"\n"
	for operation := range answers {
		config += fmt.Sprintf("[[reconcile.operation]]\nname = %q\nask = %q\nsecrets = [\"${HOOK_SECRET}\"]\nsettle = \"0s\"\n",
			operation, provider.URL)
	}
	config += "[[reconcile.operation]]\nname = \"push\"\npolicy = \"resend\"\n"
	one, two := startService(t, url, config), startService(t, url, config)
	for _, s := range []*service{one, two} {
		s.await("/metrics", `once_unknown_records\{once_name="serve"\} 2`)
		s.await("/metrics", `once_unknown_orphaned\{once_name="serve"\} 0`)
		s.stop()
	}
	for operation, want := range map[string]struct {
		status once.Status
		body   string
	}{"charge": {once.Done, `{"charge":"ch_1"}`}, "refund": {once.Done, `"too late"`}, "cancel": {once.Absent, ""},
		"ship": {once.Unknown, ""}, "push": {once.Unknown, ""}} {
		rec, err := shop.Store.Get(t.Context(), once.Key{Operation: operation, ID: "7"})
		if err != nil || rec.Status != want.status || string(rec.Outcome.Body) != want.body || rec.Outcome.Rejected != (operation == "refund") {
			t.Errorf("%s: %v %+v %v, want %v", operation, rec.Status, rec.Outcome, err, want.status)
		}
	}
}

// An answer that never ends does not keep it from stopping.
func TestServeStopsWhileItAsks(t *testing.T) {
	url, shop := shopFile(t)
	abandon(t, shop, "charge")
	asked := make(chan struct{}, 100)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		asked <- struct{}{}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for r.Context().Err() == nil {
			fmt.Fprint(w, " ")
			_ = http.NewResponseController(w).Flush()
			<-tick.C
		}
	}))
	defer provider.Close()
	s := startService(t, url, fmt.Sprintf("stop = \"5s\"\n[reconcile]\nevery = \"50ms\"\nallow = [\"127.0.0.0/8\"]\nallow_http = true\n"+
		"timeout = \"1h\"\n[[reconcile.operation]]\nname = \"charge\"\nask = %q\nsecrets = [\"${HOOK_SECRET}\"]\nsettle = \"0s\"\n", provider.URL))
	<-asked
	s.stop()
}

func TestServeForgets(t *testing.T) {
	url, shop := shopFile(t)
	serveForgets(t, url, shop)
}

func serveForgets(t *testing.T, url string, shop *target.Target) {
	t.Helper()
	op := &once.Operation[string]{Name: "mail", OnUnknown: once.Park,
		Policy: once.Policy{KeepOutcome: time.Nanosecond, KeepKey: time.Nanosecond}}
	if _, err := once.Do(t.Context(), shop.Store, op.For("7"), func(context.Context, once.Key) (string, error) {
		return "sent", nil
	}); err != nil {
		t.Fatal(err)
	}
	s := startService(t, url, "[janitor]\nevery = \"50ms\"\n")
	s.await("/metrics", `once_janitor_forgotten_total\{once_name="serve",once_kind="key"\} 1`)
	s.await("/metrics", `once_janitor_behind\{once_name="serve"\} 0`)
	s.stop()
	if rec, err := shop.Store.Get(t.Context(), once.Key{Operation: "mail", ID: "7"}); err != nil || rec.Status != once.Absent {
		t.Errorf("%v, %v", rec.Status, err)
	}
}

// abandon leaves an attempt with an unknown outcome.
func abandon(t *testing.T, shop *target.Target, operation string) {
	t.Helper()
	op := &once.Operation[string]{Name: operation, OnUnknown: once.Resend}
	_, err := once.Do(t.Context(), shop.Store, op.For("7"), func(context.Context, once.Key) (string, error) {
		return "", errors.New("the connection broke")
	})
	if !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Fatalf("the outcome is known: %v", err)
	}
}
