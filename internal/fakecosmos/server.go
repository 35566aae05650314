// Package fakecosmos is a server for tests that answers like Azure Cosmos DB for
// NoSQL, whose service cannot run here. It does what the documentation of the
// service says about items, entity tags, transactional batches, time to live,
// throttling, session tokens, queries and the change feed, as far as the tests of
// this repository use it. A test of each of these is in this package. It cannot
// show what the service does where the documentation is silent.
//
// Tests choose its clock, its consistency level, how far its secondary replicas
// are behind, when it throttles, and which requests and replies are lost.
//
// It accepts every key, and calculates no request units.
package fakecosmos

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Key is an account key that the official client accepts.
const Key = "ZmFrZWNvc21vcyBhY2NlcHRzIGV2ZXJ5IGtleSB0aGF0IGlzIGJhc2U2NA=="

// Level is a consistency level of an account.
type Level string

// These are the consistency levels. Prefix is ConsistentPrefix.
const (
	Strong   Level = "Strong"
	Bounded  Level = "BoundedStaleness"
	Session  Level = "Session"
	Prefix   Level = "ConsistentPrefix"
	Eventual Level = "Eventual"
)

// Request is a request for items, as a fault or a throttle sees it.
type Request struct {
	Kind  string // Create, Upsert, Read, Replace, Patch, Delete, Batch, Query or Feed
	Write bool   // goes to the primary replica, as a batch does even if it only reads
	N     int    // 1 for the first request for items
	Body  []byte
}

// Fault is what happens to a request.
type Fault int

const (
	None        Fault = iota
	LoseRequest       // the connection breaks, and nothing is applied
	LoseReply         // it is applied, and the connection breaks
	Delay             // the connection breaks, and DeliverLate applies it
	Unavailable       // it is applied, and answered with 503
	Refused           // nothing is applied, and it is answered with 503
)

// Server is an account.
type Server struct {
	URL  string
	http *httptest.Server

	mu         sync.Mutex
	now        func() time.Time
	level      Level
	frozen     bool
	fault      func(Request) Fault
	throttle   func(Request) (time.Duration, bool)
	header     func(Request, http.Header)
	requests   int
	late       []func() int
	delay      time.Duration
	partitions int
	databases  map[string]map[string]*container
}

// New starts a server at session consistency, the default of the service.
func New() *Server {
	s := &Server{now: time.Now, level: Session, partitions: 4, databases: make(map[string]map[string]*container)}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	s.URL = s.http.URL
	return s
}

// Close stops the server.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// SetClock replaces the clock, which tells _ts, the Date of responses, and when
// items expire.
func (s *Server) SetClock(now func() time.Time) { s.set(func() { s.now = now }) }

// SetLevel sets the consistency level of the account.
func (s *Server) SetLevel(l Level) { s.set(func() { s.level = l }) }

// SetPartitions sets how many physical partitions a container has that is created
// from then on. There are 4 by default.
func (s *Server) SetPartitions(n int) { s.set(func() { s.partitions = n }) }

// SetFault sets a function that is called for each request for items.
func (s *Server) SetFault(fault func(Request) Fault) { s.set(func() { s.fault = fault }) }

// SetThrottle sets a function that says whether a request is answered with 429,
// and for how long its client shall wait.
func (s *Server) SetThrottle(throttle func(Request) (time.Duration, bool)) {
	s.set(func() { s.throttle = throttle })
}

// SetHeader sets a function that may change the header of a request for items, so
// that the service means another thing by it.
func (s *Server) SetHeader(change func(Request, http.Header)) { s.set(func() { s.header = change }) }

// SetDelay sets how long each request for items takes.
func (s *Server) SetDelay(d time.Duration) { s.set(func() { s.delay = d }) }

// Freeze stops the replication to the secondary replicas, which answer reads
// below bounded staleness.
func (s *Server) Freeze() { s.set(func() { s.replicate(); s.frozen = true }) }

// Thaw lets the secondary replicas catch up.
func (s *Server) Thaw() { s.set(func() { s.frozen = false; s.replicate() }) }

// Split replaces each physical partition of a container by two. Requests that name
// one which is gone are answered with 410.
func (s *Server) Split(database, container string) {
	s.set(func() { s.databases[database][container].split() })
}

// Requests returns how many requests for items there have been.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// DeliverLate applies the requests that were delayed, and returns their statuses.
func (s *Server) DeliverLate() (statuses []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, apply := range s.late {
		statuses = append(statuses, apply())
	}
	s.late = nil
	return statuses
}

func (s *Server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *Server) replicate() {
	for _, containers := range s.databases {
		for _, c := range containers {
			for _, p := range c.partitions {
				p.replicate()
			}
		}
	}
}

// reply is an answer.
type reply struct {
	status  int
	etag    string
	body    any // []byte is sent as it is
	headers map[string]string
}

func refuse(status int, format string, args ...any) reply {
	return reply{status: status, body: map[string]any{"code": http.StatusText(status), "message": fmt.Sprintf(format, args...)}}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rep, cut := s.answer(r, body)
	if cut {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	date, delay := s.now(), s.delay
	s.mu.Unlock()
	if delay > 0 {
		<-time.After(delay)
	}
	h := w.Header()
	h.Set("Date", date.UTC().Format(http.TimeFormat))
	h.Set("x-ms-activity-id", rand.Text())
	h.Set("Content-Type", "application/json")
	h.Set("x-ms-request-charge", "1")
	if rep.etag != "" {
		h.Set("etag", rep.etag)
	}
	for name, value := range rep.headers {
		h.Set(name, value)
	}
	w.WriteHeader(rep.status)
	if rep.body == nil || rep.status == http.StatusNoContent || rep.status == http.StatusNotModified {
		return
	}
	text, ok := rep.body.([]byte)
	if !ok {
		if text, err = json.Marshal(rep.body); err != nil {
			panic(err)
		}
	}
	_, _ = w.Write(text)
}

// answer applies a request, unless a fault prevents it. If cut is set, the client
// gets no reply.
func (s *Server) answer(r *http.Request, body []byte) (rep reply, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(path) < 5 || path[4] != "docs" {
		return s.metadata(r, path, body), false
	}
	c := s.databases[path[1]][path[3]]
	if c == nil {
		return refuse(http.StatusNotFound, "there is no such container"), false
	}
	call := itemCall{server: s, container: c, header: r.Header, kind: kindOf(r, path), body: body}
	if len(path) > 5 {
		call.id = path[5]
	}
	s.requests++
	seen := Request{Kind: call.kind, Write: call.writes(), N: s.requests, Body: body}
	if s.header != nil {
		s.header(seen, r.Header)
	}
	if s.throttle != nil {
		if after, ok := s.throttle(seen); ok {
			rep = refuse(http.StatusTooManyRequests, "the request rate is large")
			rep.headers = map[string]string{"x-ms-retry-after-ms": strconv.FormatInt(after.Milliseconds(), 10), "x-ms-substatus": "3200"}
			return rep, false
		}
	}
	fault := None
	if s.fault != nil {
		fault = s.fault(seen)
	}
	apply := func() reply {
		rep := call.apply()
		if !s.frozen {
			for _, p := range c.partitions {
				p.replicate()
			}
		}
		return rep
	}
	switch fault {
	case LoseRequest:
		return reply{}, true
	case LoseReply:
		apply()
		return reply{}, true
	case Delay:
		s.late = append(s.late, func() int { return apply().status })
		return reply{}, true
	case Unavailable:
		apply()
		return refuse(http.StatusServiceUnavailable, "the service is unavailable"), false
	case Refused:
		return refuse(http.StatusServiceUnavailable, "the service is unavailable"), false
	}
	return apply(), false
}

func kindOf(r *http.Request, path []string) string {
	is := func(header string) bool { return strings.EqualFold(r.Header.Get(header), "true") }
	switch {
	case len(path) == 5 && r.Method == http.MethodGet:
		return "Feed"
	case is("x-ms-cosmos-is-batch-request"):
		return "Batch"
	case is("x-ms-documentdb-query"), is("x-ms-documentdb-isquery"):
		return "Query"
	case is("x-ms-documentdb-is-upsert"):
		return "Upsert"
	}
	return map[string]string{http.MethodPost: "Create", http.MethodGet: "Read", http.MethodPut: "Replace",
		http.MethodPatch: "Patch", http.MethodDelete: "Delete"}[r.Method]
}

// metadata answers requests for the account, databases, containers, and their
// partitions.
func (s *Server) metadata(r *http.Request, path []string, body []byte) reply {
	var in struct {
		ID           string `json:"id"`
		DefaultTTL   *int   `json:"defaultTtl"`
		PartitionKey struct {
			Paths []string `json:"paths"`
		} `json:"partitionKey"`
	}
	var properties map[string]any
	if len(body) > 0 {
		if err := errors.Join(json.Unmarshal(body, &in), json.Unmarshal(body, &properties)); err != nil {
			return refuse(http.StatusBadRequest, "%v", err)
		}
	}
	if path[0] == "" {
		region := []any{map[string]any{"name": "Here", "databaseAccountEndpoint": s.URL}}
		return reply{status: http.StatusOK, body: map[string]any{"id": "fakecosmos", "writableLocations": region, "readableLocations": region,
			"enableMultipleWriteLocations": false, "userConsistencyPolicy": map[string]any{"defaultConsistencyLevel": s.level}}}
	}
	if len(path) == 1 && r.Method == http.MethodPost {
		if s.databases[in.ID] != nil {
			return refuse(http.StatusConflict, "the database exists")
		}
		s.databases[in.ID] = make(map[string]*container)
		return reply{status: http.StatusCreated, body: map[string]any{"id": in.ID, "_rid": in.ID}}
	}
	containers := s.databases[path[1]]
	switch {
	case containers == nil:
		return refuse(http.StatusNotFound, "there is no such database")
	case len(path) == 2 && r.Method == http.MethodGet:
		return reply{status: http.StatusOK, body: map[string]any{"id": path[1], "_rid": path[1]}}
	case len(path) == 3 && r.Method == http.MethodPost:
		if containers[in.ID] != nil {
			return refuse(http.StatusConflict, "the container exists")
		}
		if len(in.PartitionKey.Paths) != 1 {
			return refuse(http.StatusBadRequest, "fakecosmos has no hierarchical partition keys")
		}
		if in.DefaultTTL != nil && (*in.DefaultTTL == 0 || *in.DefaultTTL < -1) {
			return refuse(http.StatusBadRequest, "the time to live is -1 or greater than 0")
		}
		properties["_rid"] = fmt.Sprintf("%s.%s.%d", path[1], in.ID, time.Now().UnixNano())
		containers[in.ID] = newContainer(properties, strings.TrimPrefix(in.PartitionKey.Paths[0], "/"), in.DefaultTTL, s.partitions)
		return reply{status: http.StatusCreated, body: properties}
	}
	var c *container
	if len(path) >= 4 {
		c = containers[path[3]]
	}
	switch {
	case c == nil:
		return refuse(http.StatusNotFound, "there is no such container")
	case len(path) == 4 && r.Method == http.MethodGet:
		return reply{status: http.StatusOK, body: c.properties}
	case len(path) == 4 && r.Method == http.MethodDelete:
		delete(containers, path[3])
		return reply{status: http.StatusNoContent}
	case len(path) == 5 && path[4] == "pkranges":
		return c.ranges(r.Header.Get("If-None-Match"))
	}
	return refuse(http.StatusNotImplemented, "fakecosmos has no %s for this", r.Method)
}
