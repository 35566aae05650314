package prove

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store"
)

// Report is what a proof counted. Each type says which of its numbers add up.
type Report struct {
	Run      string     `json:"run"` // IDs of requests begin with it
	Seed     uint64     `json:"seed"`
	Seconds  float64    `json:"seconds"`
	Requests Requests   `json:"requests"`
	Attempts Attempts   `json:"attempts"`
	Answers  Answers    `json:"answers"`
	Faults   Faults     `json:"faults"`
	Effects  []Effects  `json:"effects"`
	Keys     []KeyCount `json:"keys"`
	AllKeys  bool       `json:"all_keys"` // false: the store lists only keys that are not done
	Left     Left       `json:"left"`
	Findings []Finding  `json:"findings"`
}

// Requests are the units of work: Sent = Accepted + Refused + Unanswered.
type Requests struct {
	Sent       int `json:"sent"`
	Accepted   int `json:"accepted"`   // first answer 2xx
	Refused    int `json:"refused"`    // any other first answer
	Unanswered int `json:"unanswered"` // given up
	Doubled    int `json:"doubled"`    // sent to two copies at once; they are among the others
}

// Attempts are what was sent: Sent = Answered + ToldToRepeat + NoReply + Lost.
type Attempts struct {
	Sent         int `json:"sent"`
	Answered     int `json:"answered"`
	ToldToRepeat int `json:"told_to_repeat"` // 5xx, 408, 425, 429, or 409 with Retry-After
	NoReply      int `json:"no_reply"`       // the connection broke, or there was none
	Lost         int `json:"lost"`           // on purpose, by the caller
}

// Answers are those of the attempts: Attempts.Answered = First + Same + Different.
type Answers struct {
	First     int `json:"first"`
	Same      int `json:"same"`
	Different int `json:"different"`
}

// Faults are what was done to the program.
type Faults struct {
	Kills          int `json:"kills"`
	Ended          int `json:"ended"`           // copies that ended by themselves
	Cuts           int `json:"cuts"`            // of all connections to a server
	ConnectionsCut int `json:"connections_cut"` // by them
	Swallowed      int `json:"swallowed"`       // replies of a server
	Connections    int `json:"connections"`     // to servers, all
	RepliesNotMet  int `json:"replies_not_met"` // to be swallowed, but no reply came
}

// Effects are the rows of a count, by the requests: Accepted = Once + Twice +
// Missing + Waiting. Total = Once + Twice + Again + OfOthers.
type Effects struct {
	Name     string `json:"name"`
	Accepted int    `json:"accepted"`
	Once     int    `json:"once"`
	Twice    int    `json:"twice"`     // or more often
	Missing  int    `json:"missing"`   // no effect
	Waiting  int    `json:"waiting"`   // no effect, and a person is to decide about its key
	Total    int    `json:"total"`     // effects, of all requests of the run
	Again    int    `json:"again"`     // effects of accepted requests after their first
	OfOthers int    `json:"of_others"` // effects of requests that were not accepted
	Other    int    `json:"other"`     // requests that were not accepted, with an effect
}

// KeyCount counts the keys of an operation by their state.
type KeyCount struct {
	Operation string         `json:"operation"`
	States    map[string]int `json:"states"`
}

// Finding is a law that was broken.
type Finding struct {
	Law   string   `json:"law"`
	ID    string   `json:"id,omitempty"`    // of a request, a key or a message
	Place string   `json:"place,omitempty"` // of the request in its file, such as orders.jsonl:3
	Text  string   `json:"text"`
	Look  []string `json:"look,omitempty"` // the command that shows it
}

// Name is the ID, and the place of the request if it is from a file.
func (f Finding) Name() string {
	if f.Place == "" {
		return f.ID
	}
	return f.ID + " (" + f.Place + ")"
}

// The laws.
const (
	SameAnswer = "same-answer"
	AnAnswer   = "an-answer"
	OneEffect  = "one-effect"
	NoEffect   = "no-effect"
	Drains     = "drains"
	NobodyAsks = "nobody-needed"
)

// Laws say what each law demands.
var Laws = []struct{ Name, Text string }{
	{AnAnswer, "every request is answered in the end"},
	{SameAnswer, "every answer to a request is the same"},
	{OneEffect, "an accepted request has one effect"},
	{NoEffect, "a request that was refused has none"},
	{Drains, "when the faults stop, nothing is left to do"},
	{NobodyAsks, "nothing waits for a person"},
}

// Right reports whether every law held.
func (r Report) Right() bool { return len(r.Findings) == 0 }

// Broken returns how often a law was broken.
func (r Report) Broken(law string) (n int) {
	for _, f := range r.Findings {
		if f.Law == law {
			n++
		}
	}
	return n
}

// Sum is a number and the parts that it consists of. Without parts it stands for
// itself.
type Sum struct {
	Name  string
	Total int
	Parts []Part
}

// Part is a part of a Sum.
type Part struct {
	N    int
	Name string
}

// Text formats the parts, as in "= 198 accepted + 2 refused".
func (s Sum) Text() string {
	text := ""
	for i, p := range s.Parts {
		text += []string{"= ", " + "}[min(i, 1)] + fmt.Sprint(p.N) + " " + p.Name
	}
	return text
}

// Sums are the lines of the report. Each adds up, and its parts are totals of other
// lines where there are such lines.
func (r Report) Sums() []Sum {
	q, t, a, f := r.Requests, r.Attempts, r.Answers, r.Faults
	sums := []Sum{
		{"requests", q.Sent, []Part{{q.Accepted, "accepted"}, {q.Refused, "refused"}, {q.Unanswered, "unanswered"}}},
		{"attempts", t.Sent, []Part{{t.Answered, "answers"}, {t.ToldToRepeat, "told to repeat"}, {t.NoReply, "without a reply"}, {t.Lost, "lost on purpose"}}},
		{"answers", t.Answered, []Part{{a.First, "first"}, {a.Same, "same again"}, {a.Different, "different"}}},
	}
	for _, e := range r.Effects {
		parts := []Part{{e.Once, "with one effect"}, {e.Twice, "with more"}, {e.Missing, "with none"}}
		if e.Waiting > 0 {
			parts = append(parts, Part{e.Waiting, "waiting for a person"})
		}
		sums = append(sums, Sum{e.Name + ": accepted", e.Accepted, parts}, Sum{e.Name + ": effects", e.Total,
			[]Part{{e.Once + e.Twice, "first"}, {e.Again, "again"}, {e.OfOthers, "of requests not accepted"}}})
	}
	for _, k := range r.Keys {
		sum := Sum{Name: "keys of " + k.Operation}
		for _, state := range slices.Sorted(maps.Keys(k.States)) {
			sum.Parts = append(sum.Parts, Part{k.States[state], state})
			sum.Total += k.States[state]
		}
		sums = append(sums, sum)
	}
	left := Sum{Name: "messages left"}
	for _, place := range []struct {
		of     map[string]int
		suffix string
	}{{r.Left.Outbox, " in the outbox"}, {r.Left.Shelf, " for consumers"}} {
		for _, state := range slices.Sorted(maps.Keys(place.of)) {
			left.Parts = append(left.Parts, Part{place.of[state], state + place.suffix})
			left.Total += place.of[state]
		}
	}
	sums = append(sums, left, Sum{Name: "copies killed", Total: f.Kills}, Sum{Name: "copies that ended by themselves", Total: f.Ended},
		Sum{Name: "requests sent to two copies at once", Total: q.Doubled})
	if f.Connections == 0 { // there was no proxy
		return sums
	}
	return append(sums, Sum{Name: "connections to servers", Total: f.Connections}, Sum{Name: "times that all were cut", Total: f.Cuts},
		Sum{Name: "connections that these cut", Total: f.ConnectionsCut}, Sum{Name: "replies of servers swallowed", Total: f.Swallowed})
}

func (c *copies) kills() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.killed
}

// report counts, when all copies have ended.
func (r *run) report(ctx context.Context, p pile) (Report, error) {
	f := Report{Run: r.id, Seed: r.options.Seed, Attempts: r.callers.tally, Answers: r.callers.answers, Left: p.left,
		Faults:  Faults{Kills: r.copies.kills(), Ended: r.copies.ended, RepliesNotMet: r.neverHit},
		Effects: []Effects{}, Findings: []Finding{}}
	for _, x := range r.proxies {
		did := x.did()
		f.Faults.Cuts += did.cuts
		f.Faults.ConnectionsCut += did.broken
		f.Faults.Swallowed += did.swallowed
		f.Faults.Connections += did.accepted
		if did.accepted == 0 {
			return f, fmt.Errorf("%w: the program has made no connection to %s through its proxy, so none was broken: give it the address with {{%s}}", ErrNothing, x.name, x.name)
		}
	}
	recs, all, err := records(ctx, r.target, r.begun)
	if err != nil {
		return f, err
	}
	f.AllKeys = all
	if all && len(recs) == 0 {
		return f, fmt.Errorf("%w: the program has made no key in %s: it uses another store, or another prefix", ErrNothing, r.target)
	}
	f.countKeys(recs)
	keys := keysOf(recs)
	r.countRequests(&f, keys)
	if f.Requests.Accepted == 0 {
		return f, fmt.Errorf("%w: no request was accepted: %s", ErrNothing, r.someAnswer())
	}
	if err := r.countEffects(ctx, &f, keys); err != nil {
		return f, err
	}
	f.addLeft(p, r.options.MayPark)
	slices.SortStableFunc(f.Findings, func(a, b Finding) int { return lawIndex(a.Law) - lawIndex(b.Law) })
	return f, nil
}

func lawIndex(name string) int {
	return slices.IndexFunc(Laws, func(l struct{ Name, Text string }) bool { return l.Name == name })
}

// someAnswer says what a request was answered with.
func (r *run) someAnswer() string {
	for _, q := range r.requests {
		if a := q.answered(); a != nil {
			return fmt.Sprintf("%v was answered with %v", q.of, a)
		}
	}
	for _, q := range r.requests {
		if q.lastSeen != "" {
			return fmt.Sprintf("%v was answered with %s", q.of, q.lastSeen)
		}
	}
	return "there was no answer"
}

func (f *Report) countKeys(recs []once.Record) {
	by := map[string]map[string]int{}
	for _, rec := range recs {
		if rec.Status == once.Absent { // released
			continue
		}
		if by[rec.Key.Operation] == nil {
			by[rec.Key.Operation] = map[string]int{}
		}
		by[rec.Key.Operation][rec.Status.String()]++
	}
	f.Keys = []KeyCount{}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		f.Keys = append(f.Keys, KeyCount{name, by[name]})
	}
}

// keysOf finds records by the ID of their key.
func keysOf(recs []once.Record) map[string]once.Record {
	keys := map[string]once.Record{}
	for _, rec := range recs {
		keys[rec.Key.ID] = rec
	}
	return keys
}

// lookAt returns the command that shows the key of a request.
func lookAt(keys map[string]once.Record, id string) []string {
	if rec, ok := keys[id]; ok {
		return lookAtKey(rec.Key)
	}
	return []string{"keys", "find", id}
}

func lookAtKey(k once.Key) []string {
	command := []string{"keys", "get", k.Operation, k.ID}
	if k.Scope != "" {
		command = append(command, "--scope", k.Scope)
	}
	return command
}

func (r *run) countRequests(f *Report, keys map[string]once.Record) {
	n := &f.Requests
	n.Sent, n.Doubled = len(r.requests), r.doubled
	for _, q := range r.requests {
		switch {
		case q.first == nil:
			n.Unanswered++
			f.addRequest(AnAnswer, q, keys, "no answer within %v; at last: %s", r.options.Patience, q.lastSeen)
		case q.first.accepted():
			n.Accepted++
		default:
			n.Refused++
		}
		for _, other := range q.others {
			f.addRequest(SameAnswer, q, keys, "answered with %v, and then with %v", q.first, other)
		}
	}
}

func (f *Report) add(law, id string, look []string, format string, args ...any) {
	f.Findings = append(f.Findings, Finding{Law: law, ID: id, Text: fmt.Sprintf(format, args...), Look: look})
}

// addRequest adds a finding about a request.
func (f *Report) addRequest(law string, q *request, keys map[string]once.Record, format string, args ...any) {
	f.Findings = append(f.Findings, Finding{Law: law, ID: q.id, Place: q.of.Place, Text: fmt.Sprintf(format, args...), Look: lookAt(keys, q.key)})
}

func (r *run) countEffects(ctx context.Context, f *Report, keys map[string]once.Record) error {
	for _, c := range r.options.Counts {
		rows, err := r.rows(ctx, c)
		if err != nil {
			return fmt.Errorf("the count %s: %w", c.Name, err)
		}
		f.Effects = append(f.Effects, r.compare(f, c.Name, rows, keys))
	}
	return nil
}

// compare compares the counted effects with the answers.
func (r *run) compare(f *Report, name string, rows map[string]int, keys map[string]once.Record) Effects {
	e := Effects{Name: name, Accepted: f.Requests.Accepted}
	for _, q := range r.requests {
		n := rows[q.id]
		e.Total += n
		if q.first == nil || !q.first.accepted() {
			e.OfOthers += n
		} else {
			e.Again += max(0, n-1)
		}
		switch {
		case q.first == nil && n > 1:
			e.Other++
			f.addRequest(OneEffect, q, keys, "%s: %d effects", name, n)
		case q.first == nil:
			e.Other += n
		case !q.first.accepted():
			if n > 0 {
				e.Other++
				f.addRequest(NoEffect, q, keys, "%s: %d, although the answer was %v", name, n, q.first)
			}
		case n == 1:
			e.Once++
		case n > 1:
			e.Twice++
			f.addRequest(OneEffect, q, keys, "%s: %d effects", name, n)
		case r.options.MayPark && undecided(keys[q.key]):
			e.Waiting++
		default:
			e.Missing++
			f.addRequest(OneEffect, q, keys, "%s: no effect", name)
		}
	}
	return e
}

func undecided(rec once.Record) bool { return rec.Status == once.Unknown || rec.Status == once.Parked }

// addLeft finds what did not drain, and what waits for a person.
func (f *Report) addLeft(p pile, mayPark bool) {
	ofMessages := store.Units(p.shelved)
	for _, rec := range p.open {
		switch {
		case ofMessages[rec.Key]: // its message is the finding
		case rec.Status == once.Running:
			f.add(Drains, rec.Key.ID, lookAtKey(rec.Key), "the key of %s is still running", rec.Key.Operation)
		case !mayPark:
			f.add(NobodyAsks, rec.Key.ID, lookAtKey(rec.Key), "the key of %s is %v: %s", rec.Key.Operation, rec.Status, rec.Why())
		}
	}
	for _, m := range p.out {
		peek := []string{"outbox", "peek", "--state", m.State.String(), "--id", m.Message.ID}
		if m.State != store.Stuck {
			f.add(Drains, m.Message.ID, peek, "a message to %s is still %v in the outbox", m.Message.Topic, m.State)
		} else if !mayPark {
			f.add(NobodyAsks, m.Message.ID, peek, "a message to %s is stuck in the outbox: %s", m.Message.Topic, firstLine(m.Reason))
		}
	}
	for _, m := range p.shelved {
		if owner, queue := store.QueueOwner(m.Consumer); queue {
			m.Consumer = owner
		}
		if m.State == store.Waiting {
			f.add(Drains, m.Message.ID, []string{"parked", "list", "--state", "waiting", "--consumer", m.Consumer}, "a message still waits for %s: %s", m.Consumer, firstLine(m.Reason))
		} else if !mayPark {
			f.add(NobodyAsks, m.Message.ID, []string{"parked", "show", m.Consumer, m.Message.ID}, "a message is parked by %s: %s", m.Consumer, firstLine(m.Reason))
		}
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
