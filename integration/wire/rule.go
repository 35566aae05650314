package wire

import (
	"strings"
	"sync"
)

// Request is one or more messages of a client that the server answers together,
// or a message that is never answered.
type Request struct {
	Messages []Message

	raw      []byte
	answered bool
	here     []byte // the proxy's own answer; if it is set, the server does not get the request
}

// Answered reports whether the request has an answer whose end the proxy
// recognizes. A login, which is a conversation, has none, and neither do
// messages such as MySQL's Close.
func (r Request) Answered() bool { return r.answered }

// Message is one message of the client.
type Message struct {
	// Kind is the name of the message in its protocol. In PostgreSQL: Startup,
	// Query, Parse, Bind, Describe, Execute, Close, Sync, Flush, Terminate and
	// others. In MySQL: Login, Query, Prepare, Execute, Close, Ping, Quit and
	// others. In Raw: Data.
	Kind string

	// Text is the SQL of a Query, Parse or Prepare, and of a Bind, Describe,
	// Execute or Close of a statement that was prepared earlier. In Raw, it is
	// the data.
	Text string
}

// runs reports whether the message makes the server execute its text.
func (m Message) runs() bool { return m.Kind == "Query" || m.Kind == "Execute" || m.Kind == "Data" }

// Match selects requests.
type Match func(Request) bool

// Any matches every request.
func Any(Request) bool { return true }

// Kind matches requests with a message of this kind.
func Kind(kind string) Match {
	return func(r Request) bool {
		for _, m := range r.Messages {
			if m.Kind == kind {
				return true
			}
		}
		return false
	}
}

// Sends matches requests with a message whose text contains text, ignoring
// case. The statement may be prepared or described only.
func Sends(text string) Match {
	return func(r Request) bool {
		for _, m := range r.Messages {
			if contains(m.Text, text) {
				return true
			}
		}
		return false
	}
}

// Runs matches requests that execute a statement which contains text, ignoring
// case.
func Runs(text string) Match {
	return func(r Request) bool {
		for _, m := range r.Messages {
			if m.runs() && contains(m.Text, text) {
				return true
			}
		}
		return false
	}
}

func contains(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// Rule applies an [Action] to the requests that it matches.
type Rule struct {
	match  Match
	action Action
	skip   int
	always bool
	done   chan struct{}

	mu      sync.Mutex
	matched int
	hits    int
	over    bool
}

// Option changes a [Rule].
type Option func(*Rule)

// Always applies a rule to every request that it matches, not only to the
// first.
func Always(r *Rule) { r.always = true }

// Skip makes a rule ignore the first n requests that it matches.
func Skip(n int) Option { return func(r *Rule) { r.skip = n } }

// On adds a rule, which applies at once. If several rules match a request, all
// rules with [Pass] count it, and the first other rule is applied. A rule that
// changes replies matches neither logins nor messages that are never answered.
func (p *Proxy) On(match Match, action Action, options ...Option) *Rule {
	r := &Rule{match: match, action: action, done: make(chan struct{})}
	for _, change := range options {
		change(r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// Hits returns the number of requests to which the rule was applied.
func (r *Rule) Hits() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hits
}

// Done is closed when the rule was applied for the first time: the request is
// dropped, or the server has answered it and the answer is dropped.
func (r *Rule) Done() <-chan struct{} { return r.done }

// Remove removes the rule. It does not undo what the rule has done.
func (r *Rule) Remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// applies counts a request, and reports whether to apply the rule to it.
func (r *Rule) applies(req Request) bool {
	if r.action.needsReply() && !req.answered || !r.match(req) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.hits > 0 && !r.always {
		return false
	}
	if r.matched++; r.matched <= r.skip {
		return false
	}
	r.hits++
	return true
}

// carriedOut closes Done.
func (r *Rule) carriedOut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
	default:
		close(r.done)
	}
}

// judge returns the rule to apply to a request, or nil.
func (p *Proxy) judge(req Request) *Rule {
	p.mu.Lock()
	rules := p.rules
	p.mu.Unlock()
	for _, r := range rules {
		if !r.applies(req) {
			continue
		}
		if !r.action.passes() {
			return r
		}
		r.carriedOut()
	}
	return nil
}
