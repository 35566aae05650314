package wire

import (
	"strings"
	"sync"
)

// Request is what a client sent and waits for the answer of, or a message that is never answered.
type Request struct {
	Messages []Message

	raw      []byte
	answered bool
	here     []byte // what the proxy answers itself; the server does not get the request
}

// Answered reports whether the server answers the request, in one piece whose end is known. It does not for a login,
// whose answer is a conversation, and for messages such as MySQL's Close.
func (r Request) Answered() bool { return r.answered }

// Message is one message of the client.
type Message struct {
	// Kind is the name that the protocol has for the message. PostgreSQL: Startup, Query, Parse, Bind, Describe, Execute,
	// Close, Sync, Flush, Terminate and so on. MySQL: Login, Query, Prepare, Execute, Close, Ping, Quit and so on.
	// Raw: Data.
	Kind string
	// Text is the SQL of a Query, a Parse or a Prepare, and of the Bind, Describe, Execute or Close of a statement
	// that was prepared earlier. Raw: what was sent.
	Text string
}

// runs reports whether the message makes the server run its text.
func (m Message) runs() bool { return m.Kind == "Query" || m.Kind == "Execute" || m.Kind == "Data" }

// Match selects requests.
type Match func(Request) bool

// Any matches every request.
func Any(Request) bool { return true }

// Kind matches a request with a message of that kind.
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

// Sends matches a request with a message whose text contains the text, in upper or lower case; being prepared
// or described is enough.
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

// Runs matches a request that makes the server run a statement which contains the text, in upper or lower case.
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

// Rule says what is done to the requests that it matches.
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

// Always applies a rule to each request that it matches, instead of the first only.
func Always(r *Rule) { r.always = true }

// Skip lets a rule pass over the first n requests that it matches.
func Skip(n int) Option { return func(r *Rule) { r.skip = n } }

// On adds a rule, which holds at once. Where several rules match a request, each one of [Pass] counts it, and the first
// of the others is applied. A rule that does something to the reply matches neither a login nor what is never answered.
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

// Hits is how many requests the rule was applied to.
func (r *Rule) Hits() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hits
}

// Done is closed when the rule has been carried out for the first time: the request is dropped, or the server has
// answered it and the answer is gone.
func (r *Rule) Done() <-chan struct{} { return r.done }

// Remove ends the rule. What it has done stays done.
func (r *Rule) Remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// applies counts the request, and reports whether the rule is to be applied to it.
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

// carriedOut closes Done, once.
func (r *Rule) carriedOut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
	default:
		close(r.done)
	}
}

// judge finds the rule to apply to a request; nil: none.
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
