package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/effectively-once/once/broker/webhookbroker"
)

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// answering gives a script a server that can be asked, at $ANSWERS: about a key it says what is in the file answer-ID.json,
// with the key for KEY, and 404 if there is none. It believes who has the secret in $ONCE_ASK_SECRET.
func answering(e *testscript.Env) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		m, err := webhookbroker.Verify([]string{hookSecret}, r.Header, body, 0)
		if err != nil {
			http.Error(w, "I do not know you", http.StatusUnauthorized)
			return
		}
		var about struct{ Question, ID, Key string }
		if err := json.Unmarshal(m.Body, &about); err != nil || about.Question != "outcome" {
			http.Error(w, "this is no question", http.StatusBadRequest)
			return
		}
		answer, err := os.ReadFile(filepath.Join(e.WorkDir, "answer-"+url.PathEscape(about.ID)+".json"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(bytes.ReplaceAll(answer, []byte("KEY"), []byte(about.Key)))
	}))
	e.Defer(server.Close)
	e.Setenv("ANSWERS", server.URL)
	e.Setenv("ONCE_ASK_SECRET", hookSecret)
}
