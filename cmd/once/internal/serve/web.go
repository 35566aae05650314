package serve

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/store"
)

const (
	lookTime  = 3 * time.Second // limit of one look at the database
	lookEvery = 2 * time.Second // younger results are reused
	exact     = 10_000          // larger counts are estimated
)

// lookout reads the state of the database at a limited rate, however often it
// is asked.
type lookout struct {
	target *target.Target

	mu   sync.Mutex
	last sighting
}

// sighting is the state of the database at one time.
type sighting struct {
	at     time.Time
	err    error // the database does not answer, or its tables do not fit this program
	outbox bool  // there is one, and its depth was read
	depth  []store.Depth
	lag    *store.Lag // nil: the outbox is not read from a log
	unread error      // why the depth or the lag is missing; a slow query does not make the process unready
	failed int        // failed looks so far
}

func (l *lookout) see() sighting {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last.at) < lookEvery {
		return l.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTime) // the first caller may be gone
	defer cancel()
	failed := l.last.failed
	l.last = l.look(ctx)
	if l.last.err != nil || l.last.unread != nil {
		failed++
	}
	l.last.at, l.last.failed = time.Now(), failed
	return l.last
}

func (l *lookout) look(ctx context.Context) (s sighting) {
	var schema target.Schema
	if l.target.Tables != nil {
		schema, s.err = l.target.Tables.Schema(ctx)
	} else {
		_, s.err = l.target.Now(ctx)
	}
	messages, hasOutbox := once.As[store.Relayable](l.target.Store)
	switch {
	case s.err != nil:
	case schema.Misfit != nil:
		s.err = schema.Misfit
	case hasOutbox:
		s.depth, s.unread = messages.OutboxDepth(ctx, exact)
		s.outbox = s.unread == nil
		if log, ok := once.As[store.LogLag](l.target.Store); ok && s.unread == nil {
			s.lag, s.unread = log.OutboxLag(ctx)
		}
		if s.unread != nil && ctx.Err() == nil {
			s.err = s.unread
		}
	}
	return s
}

// misfit returns the permanent problem of the tables, if there is one. Problems
// of the database may pass.
func (l *lookout) misfit(ctx context.Context) error {
	if l.target.Tables == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	schema, err := l.target.Tables.Schema(ctx)
	if err != nil {
		return nil
	}
	return schema.Misfit
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "live") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if s.stopping.Load() {
			say(w, http.StatusServiceUnavailable, "stopping")
			return
		}
		if seen := s.lookouts.see(); seen.err != nil {
			s.logger.WarnContext(r.Context(), "not ready", "error", seen.err)
			say(w, http.StatusServiceUnavailable, "the database does not answer, or its tables do not fit this program: see the log")
			return
		}
		say(w, http.StatusOK, "ready")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, s.metrics()) // the client may be gone
	})
	return mux
}

func say(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n")
}
