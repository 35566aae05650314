package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
	"github.com/effectively-once/once/store/pgstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// httpStages guard handlers: in memory, where only the guard takes time, and
// with a transaction.
func httpStages() []stage {
	return []stage{
		{name: "HTTP handler, in memory", loads: workers(1), open: openHTTP},
		{name: "HTTP handler, fast disk", loads: workers(1, 8), open: openHTTPTx},
	}
}

// requestsPerUnit makes a unit long enough to measure.
const requestsPerUnit = 64

var answerHTTP = []byte(answer300)

func openHTTP(ctx context.Context, b *bench) (*arena, error) {
	work := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = []string{"application/json"}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answerHTTP)
	})
	guarded := func() http.Handler { return httponce.Handler(memstore.New(nil), tenant, work, nil) }
	variants := []variant{
		serving("bare handler", work, nil),
		serving("httponce, no key", guarded(), nil),
		serving("httponce, first request", guarded(), newKeys()),
		serving("httponce, repeat", guarded(), func() string { return "the-same" }),
	}
	variants = append(variants, b.peers.openInMemory(turn.HTTP, &b.report)...)
	return &arena{close: func() { b.peers.close(&b.report) }, contest: func(load) contest {
		return contest{unit: fmt.Sprintf("%d requests", requestsPerUnit), variants: variants}
	}}, nil
}

func tenant(*http.Request) (string, error) { return "acme", nil }

func newKeys() func() string {
	var n atomic.Int64
	return func() string { return fmt.Sprintf("8e03978e-40d5-43dd-bc93-%012d", n.Add(1)) }
}

// serving calls a handler without a network.
func serving(name string, h http.Handler, key func() string) variant {
	return repeated(name, func(context.Context) error {
		for range requestsPerUnit {
			if status := serve(h, key); status != http.StatusCreated {
				return fmt.Errorf("%s: status %d", name, status)
			}
		}
		return nil
	})
}

func serve(h http.Handler, key func() string) int {
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/payments"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(paymentJSON)), ContentLength: int64(len(paymentJSON))}
	if key != nil {
		r.Header[httponce.KeyHeader] = []string{key()}
	}
	w := discard{header: make(http.Header)}
	h.ServeHTTP(&w, r)
	return w.status
}

var paymentJSON = []byte(`{"amount":4999,"currency":"EUR","order":"2026-1171"}`)

// discard is a ResponseWriter that discards everything.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

func openHTTPTx(ctx context.Context, b *bench) (*arena, error) {
	p, err := openPostgres(ctx, b, settings()[0])
	if err != nil {
		return nil, err
	}
	variants, err := httpTxVariants(ctx, p.pool)
	if err != nil {
		p.close()
		return nil, err
	}
	return &arena{close: p.close, contest: func(load) contest {
		return contest{unit: "request", variants: variants}
	}}, nil
}

func httpTxVariants(ctx context.Context, pool *pgxpool.Pool) ([]variant, error) {
	store, again := pgstore.New(pool, &pgstore.Options{Schema: "once"}), pgstore.New(pool, &pgstore.Options{Schema: "once"})
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	pay := func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) error {
		if _, err := updateOne(r.Context(), tx); err != nil {
			return err
		}
		w.WriteHeader(http.StatusCreated)
		_, err := w.Write(answerHTTP)
		return err
	}
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error { return pay(w, r, tx) }); err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	first := httponce.HandlerTx[pgx.Tx](store, tenant, pay, nil)
	speculative := httponce.HandlerTx[pgx.Tx](store, tenant, pay, &httponce.Options{Speculative: true})
	repeat := httponce.HandlerTx[pgx.Tx](again, tenant, pay, nil)
	if status := serve(repeat, func() string { return "the-same" }); status != http.StatusCreated {
		return nil, errors.New("the first of the repeated requests failed")
	}
	one := func(name string, h http.Handler, key func() string) variant {
		return repeated(name, func(context.Context) error {
			if status := serve(h, key); status != http.StatusCreated {
				return fmt.Errorf("%s: status %d", name, status)
			}
			return nil
		})
	}
	return []variant{
		one("handler with its own transaction", bare, nil),
		one("HandlerTx, pgstore, first request", first, newID),
		one("HandlerTx, pgstore, speculative, first request", speculative, newID),
		one("HandlerTx, pgstore, repeat", repeat, func() string { return "the-same" }),
	}, nil
}
