package dynamostore_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/dynamostore"
)

// gateway is on the way to the service, and answers in its place while it is
// closed. Its clock is an hour ahead.
type gateway struct{ closed atomic.Bool }

func (g *gateway) Do(r *http.Request) (*http.Response, error) {
	if !g.closed.Load() {
		return http.DefaultClient.Do(r)
	}
	header := http.Header{"Date": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}, "Content-Type": {"text/html"}}
	return &http.Response{StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header,
		Body: io.NopCloser(strings.NewReader("<p>Forbidden</p>")), Request: r}, nil
}

func TestAGatewayDoesNotTellTheTime(t *testing.T) {
	w, way := newWorld(t), new(gateway)
	key := once.Key{Operation: "pay", ID: "1"}
	_, err := w.store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: 10 * time.Minute})
	must(t, err)
	for _, known := range []bool{true, false} { // the time, before the gateway answers
		other := dynamostore.New(dial(w.url, withHTTP(way)), nil)
		if known {
			_, err = other.Get(t.Context(), key)
			must(t, err)
		}
		way.closed.Store(true)
		if _, err := other.Get(t.Context(), key); err == nil {
			t.Error("the gateway lets calls pass")
		}
		way.closed.Store(false)
		if rec, err := other.Get(t.Context(), key); err != nil || rec.Status != once.Running || rec.LeaseLeft < 9*time.Minute {
			t.Errorf("the record of a live holder is %v for %v, %v", rec.Status, rec.LeaseLeft, err)
		}
	}
}
