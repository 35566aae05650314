package httponce_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

// heard is an observer that records what other systems said about keys.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) Begin(context.Context, string, once.Key) (context.Context, func(once.CallResult)) {
	return nil, nil
}

func (h *heard) Event(_ context.Context, e once.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if strings.HasPrefix(e.Name, "key_") {
		h.all = append(h.all, e.Name)
	}
}

// Transport notes what a server with httponce says about the key of a claim,
// and leaves the response unchanged. It notes nothing if a response says
// nothing about a key.
func TestTransportNotesWhatIsSaidAboutTheKey(t *testing.T) {
	const reused = `{"type":"https://example.org/docs/http.md#key-reused","title":"Idempotency-Key was used for another request"}`
	for name, c := range map[string]struct {
		status       int
		header, body string
		kind         string
		want         string
	}{
		"replayed":                     {200, "true", "the answer", "text/plain", "key_replayed"},
		"used for another request":     {422, "", reused, "application/problem+json; charset=utf-8", "key_conflict"},
		"with more after the document": {422, "", reused + strings.Repeat(" ", 20<<10), "application/problem+json", "key_conflict"},
		"the first answer":             {200, "", "the answer", "text/plain", ""},
		"another problem":              {422, "", `{"type":"https://example.org/#card-declined"}`, "application/problem+json", ""},
		"in progress":                  {409, "", `{"type":"https://example.org/docs/http.md#in-progress"}`, "application/problem+json", ""},
		"no document":                  {422, "", reused, "text/html", ""},
		"no JSON":                      {422, "", "<", "application/problem+json", ""},
		"a server that failed":         {500, "", reused, "application/problem+json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				if c.header != "" {
					w.Header().Set(httponce.ReplayedHeader, c.header)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer server.Close()
			hears := new(heard)
			s := memstore.New(&memstore.Options{Options: once.Options{Observer: hears}})
			op := &once.Operation[string]{Name: "charge", OnUnknown: once.Park}
			client := &http.Client{Transport: &httponce.Transport{}}
			post := func(ctx context.Context) (string, error) {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
				if err != nil {
					return "", err
				}
				resp, err := client.Do(req)
				if err != nil {
					return "", err
				}
				body, err := io.ReadAll(resp.Body)
				return string(body), errors.Join(err, resp.Body.Close())
			}
			got, err := once.Do(t.Context(), s, op.For("1"), func(ctx context.Context, _ once.Key) (string, error) { return post(ctx) })
			if err != nil || got != c.body {
				t.Errorf("the caller gets %d bytes, %v; want %d", len(got), err, len(c.body))
			}
			if said := strings.Join(hears.all, " "); said != c.want {
				t.Errorf("noted is %q, want %q", said, c.want)
			}
			if _, err := post(t.Context()); err != nil || len(hears.all) > 1 {
				t.Errorf("outside of a claim: %q, %v", hears.all, err)
			}
		})
	}
}
