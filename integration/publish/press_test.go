//go:build linux

package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/outbox"
)

// sheet is a message as it is sent to the press.
type sheet struct {
	ID, Key string
	Seq     int64  // of the business
	Place   string // what the relay says where it stands
}

func sheetOf(m *broker.Message) sheet {
	seq, _ := strconv.ParseInt(string(m.Body), 10, 64) // what is no number is not what was made
	return sheet{m.ID, m.OrderingKey, seq, m.Header[outbox.SeqHeader]}
}

// print is a message that has arrived.
type print struct {
	sheet
	relay string
}

// press is a broker that records what it confirms, in order. It can be faulty.
type press struct {
	url string

	mu     sync.Mutex
	chance *rand.Rand
	faulty bool
	rule   func(relay string, s sheet) error // nil: all is taken
	prints []print
	known  map[string]int // prints of an ID
	lost   int            // replies
	calls  int
}

func newPress(t testing.TB, seed uint64) *press {
	p := &press{chance: rand.New(rand.NewPCG(seed, 3)), known: make(map[string]int)}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

// ServeHTTP accepts a call as a whole or not at all, because a relay may die
// during it.
func (p *press) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var sheets []sheet
	if err := json.NewDecoder(r.Body).Decode(&sheets); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answers, lost := p.take(r.Header.Get("Relay"), sheets)
	if lost {
		panic(http.ErrAbortHandler) // the connection ends without an answer
	}
	_ = json.NewEncoder(w).Encode(answers) // one that is lost is a fault like the others
}

// take accepts a message, unless chance or a rule is against it.
func (p *press) take(relay string, sheets []sheet) (answers []string, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	fault := 100
	if p.faulty {
		fault = p.chance.IntN(40)
	}
	answers = make([]string, len(sheets))
	for i, s := range sheets {
		switch {
		case fault == 0, fault == 1 && i >= len(sheets)/2, fault == 2 && p.chance.IntN(len(sheets)) == 0:
			answers[i] = "the press is out of order"
			continue
		case p.rule != nil:
			if err := p.rule(relay, s); err != nil {
				answers[i] = err.Error()
				continue
			}
		}
		p.prints = append(p.prints, print{s, relay})
		p.known[s.ID]++
	}
	if lost = fault == 3 || fault == 1 && p.chance.IntN(2) == 0; lost {
		p.lost++
	}
	return answers, lost
}

// set changes how it fails.
func (p *press) set(faulty bool, rule func(string, sheet) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faulty, p.rule = faulty, rule
}

// missing returns the messages that have not arrived.
func (p *press) missing(ids ...string) (missing []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if p.known[id] == 0 {
			missing = append(missing, id)
		}
	}
	return missing
}

// different returns the number of different messages that have arrived.
func (p *press) different() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.known)
}

// relays returns the number of relays that published something.
func (p *press) relays() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	published := make(map[string]bool)
	for _, one := range p.prints {
		published[one.relay] = true
	}
	return len(published)
}

func (p *press) all() []print {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.prints)
}

// courier is the publisher that sends to the press.
type courier struct {
	url, relay string
	client     *http.Client
}

func newCourier(url, relay string) *courier {
	return &courier{url: url, relay: relay, client: &http.Client{Transport: &http.Transport{}}}
}

func (c *courier) Publish(ctx context.Context, ms []*broker.Message) []error {
	answers, err := c.call(ctx, ms)
	if err == nil && len(answers) != len(ms) {
		err = fmt.Errorf("%d answers for %d messages", len(answers), len(ms))
	}
	errs, failed := make([]error, len(ms)), false
	for i := range ms {
		switch {
		case err != nil:
			errs[i] = err
		case answers[i] != "":
			errs[i] = errors.New(answers[i])
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		return nil
	}
	return errs
}

func (c *courier) call(ctx context.Context, ms []*broker.Message) (answers []string, err error) {
	sheets := make([]sheet, len(ms))
	for i, m := range ms {
		sheets[i] = sheetOf(m)
	}
	text, err := json.Marshal(sheets)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Relay", c.relay)
	answer, err := c.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	return answers, json.NewDecoder(answer.Body).Decode(&answers)
}

func (c *courier) Close() error {
	c.client.CloseIdleConnections()
	return nil
}

// message returns a message for the press.
func message(id, key string, seq int64) *broker.Message {
	return &broker.Message{ID: id, Topic: "orders", OrderingKey: key, Body: strconv.AppendInt(nil, seq, 10)}
}
