// Package txeffect has effects in transactions.
package txeffect

import (
	"context"
	"database/sql"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stripe/stripe-go/v82"
	"github.com/stripe/stripe-go/v82/paymentintent"
	"google.golang.org/grpc"
)

type mailer struct{}

func (mailer) Send(ctx context.Context, to string, opts ...grpc.CallOption) error { return nil }

type service struct {
	store  *sqlstore.Store
	pg     once.TxStore[pgx.Tx]
	client *http.Client
	mail   mailer
	s3     *s3.Client
	blob   *azblob.Client
	cache  *redis.Client
	op     *once.Operation[string]
	other  *sql.DB
	later  []func()
}

func (s *service) direct(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		if _, err := http.Post("https://example.com", "text/plain", nil); err != nil { // want `txeffect: http.Post leaves the database inside once.DoTx`
			return "", err
		}
		req, err := http.NewRequestWithContext(ctx, "POST", "https://example.com", nil)
		if err != nil {
			return "", err
		}
		if _, err := s.client.Do(req); err != nil { // want `txeffect: s.client.Do leaves the database`
			return "", err
		}
		if err := s.mail.Send(ctx, "a"); err != nil { // want `txeffect: s.mail.Send leaves the database`
			return "", err
		}
		_, _ = s.s3.PutObject(ctx, nil)                     // want `txeffect: s.s3.PutObject`
		_, _ = s.s3.GetObject(ctx, nil)                     // reads
		_, _ = s.blob.UploadBuffer(ctx, "c", "b", nil, nil) // want `txeffect: s.blob.UploadBuffer`
		_, _ = s.blob.DownloadBuffer(ctx, "c", "b", nil, nil)
		s.cache.Set(ctx, "k", 1, time.Minute) // want `txeffect: s.cache.Set`
		s.cache.Get(ctx, "k")
		_, err = paymentintent.New(&stripe.PaymentIntentParams{}) // want `txeffect: paymentintent.New`
		_, _ = paymentintent.Get("pi_1", nil)
		return "", err
	})
}

func (s *service) closures(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		go func() {
			http.Get("https://example.com") // want `txeffect: http.Get`
		}()
		var wait sync.WaitGroup
		wait.Go(func() {
			http.Get("https://example.com") // want `txeffect: http.Get`
		})
		send := func() { http.Get("https://example.com") }
		send() // want `txeffect: http.Get \(in send\) leaves the database`
		s.twice(func() {
			http.Get("https://example.com") // want `txeffect: http.Get`
		})
		s.later = append(s.later, func() { http.Get("https://example.com") }) // after the commit, for all we know
		s.afterCommit(func() { http.Get("https://example.com") })
		return "", nil
	})
}

func (s *service) twice(f func())       { f(); f() }
func (s *service) afterCommit(f func()) { s.later = append(s.later, f) }

func (s *service) byName(ctx context.Context) {
	_ = inbox.Tx(s.store, s.handle)
	_ = inbox.Batch(s.store, func(ctx context.Context, tx *sql.Tx, ms []*broker.Message) error {
		for range ms {
			if err := s.notify(ctx); err != nil { // want `txeffect: s.client.Do \(in notify\) leaves the database inside inbox.Batch`
				return err
			}
		}
		return nil
	})
	_ = inbox.DoThenTx(s.store, s.op, s.charge, s.rows)
	_ = httponce.HandlerTx(s.store, nil, s.serve, nil)
	var tx *sql.Tx
	_, _ = once.InTx(ctx, s.store, tx, s.op.For("1"), s.inTx)
	_, _ = once.DoTx(ctx, s.store, s.op.For("1"), s.record("x"))
	_, _ = once.Do(ctx, s.store, s.op.For("1"), func(ctx context.Context, key once.Key) (string, error) {
		return "", s.notify(ctx)
	})
}

func (s *service) handle(ctx context.Context, tx *sql.Tx, m *broker.Message) error {
	return s.outer(ctx) // want `txeffect: s.client.Do \(in outer\) leaves the database inside inbox.Tx`
}

func (s *service) outer(ctx context.Context) error { return s.notify(ctx) }

func (s *service) notify(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, "POST", "https://example.com", strings.NewReader("x"))
	if err == nil {
		_, err = s.client.Do(req)
	}
	return err
}

func (s *service) charge(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
	return "", s.notify(ctx)
}

func (s *service) rows(ctx context.Context, tx *sql.Tx, m *broker.Message, charge string) error {
	return s.notify(ctx) // want `txeffect: s.client.Do \(in notify\) leaves the database inside inbox.DoThenTx`
}

func (s *service) serve(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	return s.notify(r.Context()) // want `txeffect: s.client.Do \(in notify\) leaves the database inside httponce.HandlerTx`
}

func (s *service) inTx(ctx context.Context) (string, error) {
	return "", s.notify(ctx) // want `txeffect: s.client.Do \(in notify\) leaves the database inside once.InTx`
}

func (s *service) record(text string) func(context.Context, *sql.Tx) (string, error) {
	return func(ctx context.Context, tx *sql.Tx) (string, error) {
		return text, s.notify(ctx) // want `txeffect: s.client.Do \(in notify\) leaves the database inside once.DoTx`
	}
}

// guarded is a wrapper: its callers give it the work.
func (s *service) guarded(ctx context.Context, id string, work func(context.Context, *sql.Tx) (string, error)) (string, error) {
	return once.DoTx(ctx, s.store, s.op.For(id), work)
}

func (s *service) wrapped(ctx context.Context) (string, error) {
	return s.guarded(ctx, "1", func(ctx context.Context, tx *sql.Tx) (string, error) {
		return "", s.notify(ctx) // want `txeffect: s.client.Do \(in notify\) leaves the database inside once.DoTx`
	})
}

func (s *service) anotherDatabase(ctx context.Context) (string, error) {
	return once.DoTx(ctx, s.pg, s.op.For("1"), func(ctx context.Context, tx pgx.Tx) (string, error) {
		if _, err := s.other.ExecContext(ctx, "DELETE FROM a"); err != nil { // want `txeffect: s.other.ExecContext writes to another database inside once.DoTx`
			return "", err
		}
		var n int
		err := s.other.QueryRowContext(ctx, "SELECT 1").Scan(&n)
		return "", err
	})
}

func pipeline(ctx context.Context, store once.TxStore[redis.Pipeliner], op *once.Operation[string], client *redis.Client) (string, error) {
	return once.DoTx(ctx, store, op.For("1"), func(ctx context.Context, tx redis.Pipeliner) (string, error) {
		tx.Set(ctx, "k", 1, time.Minute) // with the commit
		tx.Publish(ctx, "c", 1)
		p := client.Pipeline()
		p.Set(ctx, "k", 1, time.Minute)
		_, err := p.Exec(ctx) // want `txeffect: p.Exec`
		return "", err
	})
}

func inMemory(ctx context.Context, store *memstore.Store, op *once.Operation[string]) (string, error) {
	return once.DoTx(ctx, store, op.For("1"), func(ctx context.Context, tx *memstore.Tx) (string, error) {
		return "", helper(ctx, nil) // want `txeffect: c.Get \(in helper\)`
	})
}

func helper(ctx context.Context, c *http.Client) error {
	_, err := c.Get("https://example.com")
	return err
}

// caller has functions and an interface in its fields.
type caller struct {
	store  *sqlstore.Store
	op     *once.Operation[string]
	client *http.Client
	doer   interface {
		Do(*http.Request) (*http.Response, error)
	}
	get  func(string) (*http.Response, error)
	post func(context.Context) error
	Any  func(string) (*http.Response, error)
}

func newCaller() *caller {
	c := &caller{get: http.Get, Any: http.Get}
	c.post = c.posts
	return c
}

func (c *caller) posts(ctx context.Context) error {
	_, err := c.client.Post("https://example.com", "text/plain", nil)
	return err
}

func (c *caller) values(ctx context.Context) (string, error) {
	return once.DoTx(ctx, c.store, c.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", "https://example.com", nil)
		if err != nil {
			return "", err
		}
		do := c.client.Do
		_, _ = do(req)                          // want `txeffect: do leaves the database inside once.DoTx`
		_, _ = c.doer.Do(req)                   // want `txeffect: c.doer.Do leaves the database`
		_, _ = c.get("https://example.com")     // want `txeffect: c.get leaves the database`
		_, _ = c.Any("https://example.com")     // another package may set it
		defer http.Get("https://example.com")   // want `txeffect: http.Get leaves the database`
		_, _ = http.NewRequest("GET", "/", nil) // sends nothing
		return "", c.post(ctx)                  // want `txeffect: c.client.Post \(in posts\) leaves the database`
	})
}

// inTx gives the transaction to a function of its caller.
func (c *caller) inTx(ctx context.Context, do func(context.Context, *sql.Tx) error) error {
	_, err := once.DoTx(ctx, c.store, c.op.For("1"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		return "", do(ctx, tx)
	})
	return err
}

func (c *caller) passes(ctx context.Context) error {
	return c.inTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := http.Get("https://example.com") // want `txeffect: http.Get leaves the database inside once.DoTx`
		return err
	})
}
