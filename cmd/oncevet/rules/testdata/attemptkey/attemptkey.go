// Package attemptkey sends idempotency keys.
package attemptkey

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/inbox"
	"github.com/effectively-once/once/store/memstore"
	"github.com/google/uuid"
	"github.com/stripe/stripe-go/v82"
	"github.com/stripe/stripe-go/v82/paymentintent"
)

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Resend}

func right(ctx context.Context, s *memstore.Store, client *http.Client) (string, error) {
	return once.Do(ctx, s, pay.For("1"), func(ctx context.Context, key once.Key) (string, error) {
		req, err := http.NewRequestWithContext(httponce.WithKey(ctx, key.Step("capture").String()), "POST", "https://example.com", nil)
		if err != nil {
			return "", once.NotDone(err)
		}
		req.Header.Set("Idempotency-Key", key.String())
		req.Header.Set("X-Request-Id", uuid.NewString()) // for the log of the provider
		_, err = client.Do(req)
		return "", err
	})
}

func wrong(ctx context.Context, s *memstore.Store, client *http.Client) (string, error) {
	return once.Do(ctx, s, pay.For("1"), func(ctx context.Context, key once.Key) (string, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", "https://example.com", nil)
		if err != nil {
			return "", once.NotDone(err)
		}
		req.Header.Set("Idempotency-Key", uuid.NewString()) // want `attemptkey: the idempotency key contains uuid.NewString, so that the other system takes each attempt of once.Do for a new request: send key.String\(\)`
		id := fmt.Sprint("1-", time.Now().Unix())
		req.Header.Add("idempotency-key", id)         // want `attemptkey: the idempotency key contains time.Now`
		today := time.Now().Format(time.DateOnly)     // an attempt after midnight sends another one
		req.Header.Add("idempotency-key", today)      // want `attemptkey: the idempotency key contains time.Now`
		ctx = httponce.WithKey(ctx, uuid.NewString()) // want `attemptkey: the idempotency key contains uuid.NewString`
		if claim, ok := once.ClaimFrom(ctx); ok {
			req.Header.Set("Idempotency-Key", fmt.Sprint(key.String(), claim.Attempt)) // want `attemptkey: the idempotency key contains the number of the attempt`
		}
		_, err = client.Do(req)
		return "", err
	})
}

func ofStripe(s *memstore.Store) inbox.Handler {
	return inbox.Do(s, pay, func(ctx context.Context, key once.Key, m *broker.Message) (string, error) {
		params := &stripe.PaymentIntentParams{Amount: stripe.Int64(4999)}
		params.SetIdempotencyKey(uuid.New().String())           // want `attemptkey: the idempotency key contains uuid.New,`
		params.IdempotencyKey = stripe.String(uuid.NewString()) // want `attemptkey: the idempotency key contains uuid.NewString`
		params.SetIdempotencyKey(key.String())
		intent, err := paymentintent.New(params)
		if err != nil {
			return "", err
		}
		return intent.ID, nil
	})
}

func byName(ctx context.Context, s *memstore.Store) {
	_, _ = once.Do(ctx, s, pay.For("1"), charge)
}

func charge(ctx context.Context, k once.Key) (string, error) {
	return "", send(ctx) // want `attemptkey: the idempotency key \(in send\) contains uuid.NewString, .* send k.String\(\)`
}

func send(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, "POST", "https://example.com", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", uuid.NewString())
	_, err = http.DefaultClient.Do(req)
	return err
}

// unguarded has nothing that repeats it.
func unguarded(ctx context.Context) error { return send(httponce.WithKey(ctx, uuid.NewString())) }

func headers(ctx context.Context, s *memstore.Store) {
	_, _ = once.Do(ctx, s, pay.For("1"), func(ctx context.Context, key once.Key) (string, error) {
		h := http.Header{"Idempotency-Key": {uuid.NewString()}} // want `attemptkey: the idempotency key contains uuid.NewString`
		h["Idempotency-Key"] = []string{uuid.NewString()}       // want `attemptkey: the idempotency key contains uuid.NewString`
		h["Idempotency-Key"] = []string{key.String()}
		h["Request-Id"] = []string{uuid.NewString()}
		_, err := http.DefaultClient.Do(&http.Request{Method: "POST", Header: h})
		return "", err
	})
}
