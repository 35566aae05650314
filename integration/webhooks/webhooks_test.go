//go:build linux

package webhooks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/integration/internal/engines"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/sqlstore"
)

const (
	secret = "whsec_of_the_endpoint"
	shared = "a secret delivery property"
	topic  = "/subscriptions/1/resourceGroups/shop/providers/Microsoft.EventGrid/topics/orders"
)

// plan is the configuration of a process, which serves webhooks.
type plan struct {
	Base         engines.Place
	DiesAt       int           // the Ack before which it kills itself, when the commit is done; 0: none
	AnswerWithin time.Duration // of the receivers
}

// The IDs of events whose handlers do something else than write.
const (
	waits = "waits" // for a line of the input, after it has said so
	later = "later" // fail until there is a line
	fails = "fails" // for good
)

// TestMain also makes this binary the program of the processes.
func TestMain(m *testing.M) { fleet.Main(m, serve) }

// serve consumes what arrives at /stripe and /eventgrid.
func serve(ctx context.Context, p plan, lines <-chan struct{}) error {
	pool, err := p.Base.Open(4)
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	st := sqlstore.New(pool.SQL, pool.Dialect, &sqlstore.Options{Options: once.Options{Logger: logger}})
	var open atomic.Bool // since a line, which is read by a transaction that may be rolled back
	handler := inbox.Tx(st, func(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
		if strings.HasSuffix(m.ID, waits) {
			fmt.Println("waits")
			<-lines
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO effect (id, process) VALUES (?, ?)", m.ID, os.Getpid()); err != nil {
			return err
		}
		switch {
		case strings.HasSuffix(m.ID, fails):
			return once.Permanent(errors.New("no such customer"))
		case strings.HasSuffix(m.ID, later):
			select {
			case <-lines:
				open.Store(true)
			default:
			}
			if !open.Load() {
				return errors.New("not yet")
			}
		}
		return nil
	})
	mux, acks := http.NewServeMux(), new(atomic.Int64)
	var running sync.WaitGroup
	for name, format := range map[string]webhookbroker.Format{
		"stripe":    webhookbroker.Stripe(secret),
		"eventgrid": webhookbroker.EventGrid(webhookbroker.HeaderSecret("x-key", shared), topic),
	} {
		receiver, err := webhookbroker.NewReceiver(name, format, &webhookbroker.ReceiverOptions{AnswerWithin: p.AnswerWithin, Logger: logger})
		if err != nil {
			return err
		}
		mux.Handle("/"+name, receiver)
		consumer := &inbox.Consumer{Name: name, Source: &source{receiver, acks, int64(p.DiesAt)}, Handler: handler,
			Policy: once.Policy{Lease: time.Second}, Retry: inbox.Retry{Attempts: 10_000, First: 10 * time.Millisecond, Limit: 100 * time.Millisecond}}
		running.Add(1)
		go func() {
			defer running.Done()
			if err := consumer.Run(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "consumer:", err)
			}
		}()
	}
	defer running.Wait()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	fmt.Println("ready", listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// source kills the process before one of its Acks.
type source struct {
	*webhookbroker.Receiver
	acks   *atomic.Int64
	diesAt int64
}

func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	session, err := s.Receiver.Open(ctx, window)
	return &dying{session, s}, err
}

type dying struct {
	broker.Session
	source *source
}

func (d *dying) Ack(ctx context.Context, ds []broker.Delivery) error {
	if d.source.acks.Add(1) == d.source.diesAt {
		fleet.DieNow()
	}
	return d.Session.Ack(ctx, ds)
}

// world is a database, and the processes that use it.
type world struct {
	*engines.Pool
	t *testing.T
}

func newWorld(t *testing.T) *world {
	t.Helper()
	place := engines.New(t, engines.SQLite)
	pool, err := place.Open(2)
	proof.Must(t, err)
	t.Cleanup(pool.Close)
	proof.Must(t, sqlstore.New(pool.SQL, pool.Dialect, nil).Migrate(t.Context()))
	pool.Exec(t, "CREATE TABLE effect (id VARCHAR(255) NOT NULL, process INTEGER NOT NULL)")
	return &world{pool, t}
}

// start starts a process, and returns it with its URL.
func (w *world) start(p plan) (*fleet.Process, string) {
	w.t.Helper()
	p.Base = w.Place
	process := fleet.Start(w.t, p)
	return process, "http://" + strings.TrimPrefix(process.Hear(w.t, "ready "), "ready ")
}

// effects returns how often each event had its effect.
func (w *world) effects() map[string]int {
	w.t.Helper()
	rows, err := w.SQL.Query("SELECT id, COUNT(*) FROM effect GROUP BY id")
	proof.Must(w.t, err)
	defer rows.Close()
	all := make(map[string]int)
	for rows.Next() {
		var id string
		var n int
		proof.Must(w.t, rows.Scan(&id, &n))
		all[id] = n
	}
	proof.Must(w.t, rows.Err())
	return all
}

func (w *world) wantOnce(ids ...string) {
	w.t.Helper()
	effects := w.effects()
	for _, id := range ids {
		if effects[id] != 1 {
			w.t.Errorf("%s had %d effects", id, effects[id])
		}
	}
	if len(effects) != len(ids) {
		w.t.Errorf("%d events had effects, and %d were sent: %v", len(effects), len(ids), effects)
	}
	for _, sh := range w.shelved() {
		w.t.Errorf("%s is on the shelf: %s", sh.Message.ID, sh.Reason)
	}
}

func (w *world) shelved() []store.Shelved {
	w.t.Helper()
	all, err := inbox.Admin{Store: sqlstore.New(w.SQL, w.Dialect, nil)}.List(w.t.Context(), store.ShelfQuery{})
	proof.Must(w.t, err)
	return all
}

// client makes each request with a connection of its own, so that none is sent
// again by itself.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// created is the time of all events. The inbox would park events that are older
// than its keys.
var created = strconv.FormatInt(time.Now().Unix(), 10)

// attempt is the number of requests, because no two are equal.
var attempt atomic.Int64

// stripe sends an event as Stripe does, and returns the status, or 0 if there was
// no answer.
func stripe(ctx context.Context, url, id string) int {
	body := fmt.Sprintf(`{"id":%q,"type":"charge.succeeded","created":%s,"pending_webhooks":%d}`, id, created, attempt.Add(1))
	at := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "%s.%s", at, body)
	return send(ctx, url+"/stripe", body, "Stripe-Signature", "t="+at+",v1="+hex.EncodeToString(mac.Sum(nil)))
}

// grid sends a batch as Event Grid does.
func grid(ctx context.Context, url string, ids ...string) int {
	var events []string
	for _, id := range ids {
		between := strings.Repeat(" ", int(attempt.Add(1)%8))
		events = append(events, fmt.Sprintf(`{"id":%q,"topic":%q,"eventType":"OrderPaid","data":{%s}}`, id, topic, between))
	}
	return send(ctx, url+"/eventgrid", "["+strings.Join(events, ",")+"]", "x-key", shared)
}

func send(ctx context.Context, url, body, header, value string) int {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0
	}
	r.Header.Set(header, value)
	answer, err := client.Do(r)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// repeat sends again until the answer is 2xx, as senders do, or until ctx ends.
func repeat(ctx context.Context, post func() int) {
	for post()/100 != 2 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

// until repeats a request, and ends the test if it is in vain.
func until(t *testing.T, post func() int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), proof.Patience)
	defer cancel()
	repeat(ctx, post)
	if ctx.Err() != nil {
		t.Errorf("no request was answered with 2xx within %v", proof.Patience)
	}
}

// The process dies when the effect is committed and the sender has no answer. The
// sender repeats, and the event has no second effect.
func TestKilledBetweenCommitAndAnswer(t *testing.T) {
	w := newWorld(t)
	const kills = 5
	var ids []string
	for i := range kills {
		// The first Ack of all but the first process is that of the repetition.
		process, url := w.start(plan{DiesAt: min(i, 1) + 1})
		if i > 0 {
			until(t, func() int { return stripe(t.Context(), url, ids[i-1]) })
		}
		ids = append(ids, fmt.Sprint("evt_", i))
		proof.Await(t, "the process dies before it answers", func() bool { return stripe(t.Context(), url, ids[i]) == 0 })
		<-process.Ended()
		w.wantOnce(ids...) // committed before the process died
	}
	_, url := w.start(plan{})
	for _, id := range ids {
		until(t, func() int { return stripe(t.Context(), url, id) })
	}
	w.wantOnce(ids...)
}

func TestCopiesAtOnceHaveOneEffect(t *testing.T) {
	w := newWorld(t)
	_, one := w.start(plan{})
	_, two := w.start(plan{})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			until(t, func() int { return stripe(t.Context(), []string{one, two}[i%2], "evt_1") })
		}()
	}
	wg.Wait()
	w.wantOnce("evt_1")
}

// The sender disconnects while the handler works. The work is committed, and the
// repetition is a duplicate.
func TestASenderThatDisconnects(t *testing.T) {
	w := newWorld(t)
	process, url := w.start(plan{})
	ctx, disconnect := context.WithCancel(t.Context())
	var sent sync.WaitGroup
	sent.Add(1)
	go func() {
		defer sent.Done()
		repeat(ctx, func() int { return stripe(ctx, url, "evt_"+waits) })
	}()
	process.Hear(t, "waits")
	disconnect()
	sent.Wait()
	process.Tell(t)
	proof.Await(t, "the effect is committed", func() bool { return len(w.effects()) == 1 })
	until(t, func() int { return stripe(t.Context(), url, "evt_"+waits) })
	w.wantOnce("evt_" + waits)
}

// One event of a batch fails for longer than the sender waits. The whole batch
// comes again, and those that are done are not done again.
func TestABatchThatIsRepeated(t *testing.T) {
	w := newWorld(t)
	process, url := w.start(plan{AnswerWithin: 300 * time.Millisecond})
	ids := []string{"1", later, "2"}
	var keys []string
	for _, id := range ids {
		keys = append(keys, strings.ToLower(topic)+" "+id)
	}
	repeated := 0
	proof.Await(t, "the batch is repeated although two of its events are done", func() bool {
		if status := grid(t.Context(), url, ids...); status != http.StatusServiceUnavailable {
			t.Fatalf("answered %d while an event of the batch fails", status)
		}
		if len(w.effects()) == 2 {
			repeated++
		}
		return repeated == 3
	})
	process.Tell(t)
	until(t, func() int { return grid(t.Context(), url, ids...) })
	w.wantOnce(keys...)
}

// A message that can never be handled is on the shelf of the store, so the
// sender need not repeat it.
func TestWhatIsParkedIsAnswered(t *testing.T) {
	w := newWorld(t)
	_, url := w.start(plan{})
	for range 2 {
		until(t, func() int { return stripe(t.Context(), url, "evt_"+fails) })
	}
	if effects := w.effects(); len(effects) != 0 {
		t.Errorf("rolled back, and yet there are %v", effects)
	}
	shelved := w.shelved()
	if len(shelved) != 1 || shelved[0].Message.ID != "evt_"+fails {
		t.Errorf("on the shelf: %+v", shelved)
	}
}
