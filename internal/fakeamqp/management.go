package fakeamqp

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
)

// Management imitates the part of the management API of Service Bus that tells how
// many messages a queue or a subscription has. Locked and deferred messages count as
// active. Scheduled messages and dead letters are counted apart.
type Management struct {
	Server *Server
	Denies bool // it answers as to somebody without the right Manage
	Mute   bool // its answers lack the counts
}

// Do makes the API a transport of clients.
func (m *Management) Do(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	answer := w.Result()
	answer.Request = r
	return answer, r.Context().Err()
}

func (m *Management) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/atom+xml")
	refuse := func(status int, detail string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%d</Code><Detail>%s</Detail></Error>", status, detail)
	}
	path := strings.Trim(r.URL.Path, "/")
	counts, known := m.Server.counts(path)
	switch {
	case r.Method != http.MethodGet || r.URL.Query().Get("api-version") == "":
		refuse(http.StatusBadRequest, "only GET is imitated")
	case m.Denies || !strings.HasPrefix(r.Header.Get("Authorization"), "SharedAccessSignature sr="):
		refuse(http.StatusUnauthorized, "Manage,EntityRead claims required for this operation.")
	case !known:
		refuse(http.StatusNotFound, "No service is hosted at the specified address.")
	default:
		m.describe(w, path, counts)
	}
}

// counts are the messages of a queue or a subscription.
type counts struct{ active, scheduled, dead int }

func (s *Server) counts(path string) (n counts, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[path]
	if q == nil || q.dlq == nil {
		return n, false
	}
	for _, e := range q.list {
		if e.state == scheduled {
			n.scheduled++
		} else {
			n.active++
		}
	}
	n.dead = len(q.dlq.list)
	return n, true
}

func (m *Management) describe(w http.ResponseWriter, path string, n counts) {
	kind := "QueueDescription"
	if strings.Contains(path, "/Subscriptions/") {
		kind = "SubscriptionDescription"
	}
	details := ""
	if !m.Mute {
		for _, count := range []struct {
			name string
			n    int
		}{{"Active", n.active}, {"DeadLetter", n.dead}, {"Scheduled", n.scheduled}, {"Transfer", 0}, {"TransferDeadLetter", 0}} {
			details += fmt.Sprintf("<d2p1:%sMessageCount>%d</d2p1:%[1]sMessageCount>", count.name, count.n)
		}
	}
	fmt.Fprintf(w, `<entry xmlns="http://www.w3.org/2005/Atom"><title type="text">%s</title><content type="application/xml">`+
		`<%s xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">`+
		`<MessageCount>%d</MessageCount><CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">%s</CountDetails>`+
		`<CreatedAt>2026-01-01T00:00:00Z</CreatedAt><UpdatedAt>2026-01-01T00:00:00Z</UpdatedAt><AccessedAt>2026-01-01T00:00:00Z</AccessedAt>`+
		`</%[2]s></content></entry>`, path, kind, n.active+n.scheduled+n.dead, details)
}
