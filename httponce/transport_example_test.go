package httponce_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// bank stands for a service that honours the key, and loses its first answer.
func bank() *httptest.Server {
	var charges sync.Map
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, again := charges.LoadOrStore(r.Header.Get(httponce.KeyHeader), true); again {
			w.Header().Set(httponce.ReplayedHeader, "true")
			return
		}
		fmt.Println("charged once")
		panic(http.ErrAbortHandler)
	}))
}

// The response to the first attempt is lost. The second has the same key, so
// the bank responds and does not charge again.
func ExampleTransport() {
	bank := bank()
	defer bank.Close()

	client := &http.Client{Transport: &httponce.Transport{}, Timeout: time.Minute}
	resp, err := client.Post(bank.URL, "application/json", strings.NewReader(`{"cents":4999}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, "after", httponce.Attempts(resp), "attempts, replayed:", httponce.Replayed(resp))
	// Output:
	// charged once
	// 200 OK after 2 attempts, replayed: true
}

// Work that sends two different requests names the second by a step of its key.
// The first has the key of the work.
func ExampleWithKey() {
	ctx, store := context.Background(), memstore.New(nil)
	client := &http.Client{Transport: &httponce.Transport{}}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.URL.Path, r.Header.Get(httponce.KeyHeader))
	}))
	defer service.Close()
	send := func(ctx context.Context, path string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, service.URL+path, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}

	charge := &once.Operation[string]{Name: "charge", OnUnknown: once.Resend, KeyValidFor: 24 * time.Hour}
	_, err := once.Do(ctx, store, charge.For("order-1"), func(ctx context.Context, key once.Key) (string, error) {
		if err := send(ctx, "/authorize"); err != nil {
			return "", err
		}
		return "captured", send(httponce.WithKey(ctx, key.Step("capture").String()), "/capture")
	})
	fmt.Println(err)
	// Output:
	// /authorize "c1650a0e-c055-864e-8d00-0363e58428cc"
	// /capture "30ac236c-114d-870f-a0a0-fc71b738586a"
	// <nil>
}
