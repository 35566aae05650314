package world

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
)

// Answer is what work returns.
type Answer struct {
	Text    string
	At      time.Duration // when it happened, or its work ran: a commit may arrive later, and KeepKey counts from when it was sent
	Refused bool
	Words   string `json:",omitempty"` // of whoever found out, which are others than those of the work
	Filler  string `json:",omitempty"`
}

// deed is what is known of a key.
type deed struct {
	effects []Answer            // as they happened, at a downstream or in the database
	rows    []Answer            // of work that is moved, in the database
	seen    []heard             // by callers
	decided map[[16]byte]string // claims, by whom
	touched bool                // by a person
	strayed bool                // it was called with another input
	given   bool                // nobody calls it any more
	left    bool                // a caller has left before it had an answer

	attempts []*attempt // at a downstream, as they began
}

// heard is an answer, and when a caller first got it.
type heard struct {
	Answer
	at time.Duration
}

// book is what the world knows of its keys. It judges what it is told.
type book struct {
	*sim.World
	KeysPlan

	// margin is for how long the downstream honours keys beyond ValidFor: until work
	// that has looked at the age of its key has made its call. If a process has
	// stalled, that may take longer.
	margin, stalled time.Duration

	outage atomic.Int64 // when the store last went down or came back; 0: never

	mu    sync.Mutex
	deeds map[string]*deed
	runs  map[string]tried // runs of work in transactions, by the text of their answers
	busy  map[string]bool  // callers; false: it has all its answers
}

// tried is a run of work in a transaction.
type tried struct {
	key    string
	answer Answer
	failed error // of which the caller was told that it did not happen
}

func newBook(w *sim.World, plan KeysPlan) *book {
	b := &book{World: w, KeysPlan: plan, margin: plan.Settles, deeds: make(map[string]*deed),
		runs: make(map[string]tried), busy: make(map[string]bool)}
	slow := plan.Policy.Lease + plan.Slowest + w.Stall
	if b.stalled = b.margin + slow; plan.Slow > 0 || plan.Policy.Lease < 30*time.Second {
		b.margin = b.stalled
	}
	for i := range plan.Processes {
		b.busy[fmt.Sprint("caller", i+1)] = true
	}
	w.OnOutage(b.hearsOfOutages)
	return b
}

// of is called with the lock held.
func (b *book) of(key string) *deed {
	d := b.deeds[key]
	if d == nil {
		d = &deed{decided: make(map[[16]byte]string)}
		b.deeds[key] = d
	}
	return d
}

// makes returns the answer of the n-th time that work is tried.
func (b *book) makes(key string, n int) Answer {
	a := Answer{Text: fmt.Sprintf("%s-%d", key, n), At: b.Now()}
	if _, refused := b.Trait("refused "+key, b.Refused); refused && n == 1 {
		a.Refused = true
	}
	if _, large := b.Trait("large "+key, b.Large); large {
		a.Filler = strings.Repeat("x", 1000)
	}
	return a
}

// arrives is told of each call that arrives at a downstream, and returns what it
// answers.
func (b *book) arrives(kind, key string) Answer {
	b.mu.Lock()
	defer b.mu.Unlock()
	d, margin := b.of(key), b.margin
	if b.HasStalled() {
		margin = b.stalled
	}
	if n := len(d.effects); kind == honours && n > 0 && (b.ValidFor == 0 || b.Now() < d.effects[n-1].At+b.ValidFor+margin) {
		return d.effects[n-1]
	}
	a := b.makes(key, len(d.effects)+1)
	b.happens(key, &d.effects, a, b.Settles)
	return a
}

// happens judges an effect. The one before may have arrived late, after a Lookup
// that found an effect of a time that was forgotten.
func (b *book) happens(key string, before *[]Answer, a Answer, late time.Duration) {
	if n := len(*before); n > 0 && a.At < (*before)[n-1].At+b.Policy.KeepKey-late {
		b.Broke(EffectOnce, key, "happened again %v after the time before, and KeepKey is %v",
			(a.At - (*before)[n-1].At).Round(time.Millisecond), b.Policy.KeepKey)
	}
	*before = append(*before, a)
}

// has reports whether an answer is that of what happened.
func (d *deed) has(a Answer) bool {
	is := func(other Answer) bool { return other.Text == a.Text }
	return slices.ContainsFunc(d.effects, is) || slices.ContainsFunc(d.rows, is)
}

// judgeFree is called when a process has been told that a key is free, after an
// attempt. What has happened is remembered, or its outcome is unknown. It may be late,
// as in happens.
func (b *book) judgeFree(key string, asked time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range slices.Concat(b.of(key).effects, b.of(key).rows) {
		if a.At < asked && asked < a.At+b.Policy.KeepKey-b.Settles {
			b.Broke(Remembered, key, "is told to be free, and %s happened %v before", a.Text, asked-a.At)
		}
	}
}

// find returns what a downstream that can be asked knows.
func (b *book) find(key string) (Answer, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.of(key); len(d.effects) > 0 {
		return d.effects[len(d.effects)-1], true
	}
	return Answer{}, false
}

// tries is told of each run of work in a transaction, and returns its answer.
func (b *book) tries(key string) Answer {
	n := b.Number("database", "run", key)
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.makes(key, n)
	if strings.HasPrefix(key, honours) { // it is moved
		a.Text, a.Refused = a.Text+"-row", false
	}
	b.runs[a.Text] = tried{key: key, answer: a}
	return a
}

// toldFailed judges an error that a caller got, whose work ran in transactions. All
// but two kinds say that these were not committed, and will not be.
func (b *book) toldFailed(key string, runs []Answer, err error) {
	if errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrLeaseLost) || isDone(err) || b.Policy.KeepKey < time.Hour {
		return // or the key may have been forgotten before its caller asks
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range runs {
		if a.Text == "" {
			continue
		}
		run := b.runs[a.Text]
		run.failed = err
		b.runs[a.Text] = run
		if b.of(key).has(a) {
			b.Broke(MayRetry, key, "%s is committed, and its caller was told: %v", a.Text, err)
		}
	}
}

// committed is told of the rows of each transaction that was committed.
func (b *book) committed(rows []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, row := range rows {
		run := b.runs[row]
		if run.failed != nil {
			b.Broke(MayRetry, run.key, "%s is committed, and its caller was told: %v", row, run.failed)
		}
		late := time.Duration(0)
		if b.Speculative { // the work may have run when the key was not yet forgotten
			late = b.Now() - run.answer.At
		}
		to := &b.of(run.key).effects
		if strings.HasPrefix(run.key, honours) {
			to = &b.of(run.key).rows
		}
		b.happens(run.key, to, run.answer, late)
	}
}

// answered judges an answer that a caller got.
func (b *book) answered(kind, key string, a Answer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.of(key)
	refused := errors.Is(err, once.ErrRejected)
	if refused != a.Refused {
		b.Broke(OneAnswer, key, "%s was refused: %t, and a caller was told: %t", a.Text, a.Refused, refused)
	}
	happened := d.has(a)
	if wanted := kind != inTx || !refused; happened != wanted {
		b.Broke(OneAnswer, key, "a caller was told %q, which happened: %t, want %t", a.Text, happened, wanted)
	}
	known := false
	for _, other := range d.seen {
		if other.Text == a.Text && other.Words == a.Words {
			known = true
			continue
		}
		// A refusal may be recorded, and told, when another answer has been forgotten. An
		// outcome that has expired cannot be compared.
		keep := b.Policy.KeepKey
		if other.Text == a.Text {
			keep = b.Policy.KeepOutcome
		}
		if b.Now() < other.At+keep && other.at < a.At+keep {
			b.Broke(OneAnswer, key, "callers were told %q and %q, which happened %v apart", other.Text+other.Words, a.Text+a.Words,
				max(a.At-other.At, other.At-a.At))
			return
		}
	}
	if !known {
		d.seen = append(d.seen, heard{a, b.Now()})
	}
}

// answeredText judges an answer of which a client got the text.
func (b *book) answeredText(kind, key, text string, refused bool) {
	b.mu.Lock()
	a, known := b.runs[text].answer, false
	for _, e := range b.of(key).effects {
		if e.Text == text {
			a = e
		}
	}
	known = a.Text != ""
	b.mu.Unlock()
	if !known {
		b.Broke(OneAnswer, key, "a client was told %.60q, which nobody has answered", text)
		return
	}
	var err error
	if refused {
		err = once.ErrRejected
	}
	b.answered(kind, key, a, err)
}

// failed judges an error of a call that began at a time. It reports whether the
// caller is to call again, and after how long.
func (b *book) failed(kind, key string, began time.Duration, err error) (after time.Duration, again bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	after, again = once.MayRetry(err)
	if bound := b.Policy.Lease + b.Settles + 2*time.Minute; after > bound {
		b.Broke(MayRetry, key, "retry after %v: everything is known in %v: %v", after, bound, err)
	}
	if again {
		return after, true
	}
	d := b.of(key)
	wrong := ""
	switch {
	case errors.Is(err, once.ErrMismatch) && d.strayed:
		return time.Second, !b.IsCalm() // the other one finds its mistake, and does nothing, or the key stays its own
	case errors.Is(err, once.ErrParked):
		after, again = 5*time.Second, true // when a person has decided
		if kind == asks || kind == inTx || kind == honours && b.ValidFor == 0 {
			wrong = "this work is never parked"
		}
	case errors.Is(err, once.ErrExpired):
		young := func(a heard) bool { return a.at <= began && b.Now() < a.At+b.Policy.KeepOutcome }
		if slices.ContainsFunc(d.seen, young) {
			wrong = "its answer is younger than KeepOutcome"
		}
	case errors.Is(err, once.ErrOutcomeUnavailable):
		switch _, large := b.Trait("large "+key, b.Large); {
		case !large || len(d.effects) == 0:
			wrong = "its answer is small, or it did not happen"
		case kind == inTx && b.CAS == nil:
			wrong = "no transaction with an answer over the limit is committed"
		}
	case errors.Is(err, once.ErrOutcomeTooLarge):
		if _, large := b.Trait("large "+key, b.Large); !large || kind != inTx {
			wrong = "its answer is small, or it is in no transaction"
		}
	default:
		wrong = "nothing that happened here is final"
	}
	if wrong != "" {
		b.Broke(MayRetry, key, "a caller was told that a repeat cannot help, and %s: %v", wrong, err)
	}
	return after, again
}

// decides is told of each decision of a person, and of what the person was told.
func (b *book) decides(r once.Record, now int64, who string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := sim.KeyText(r.Key)
	d := b.of(key)
	d.touched = true
	switch {
	case errors.Is(err, once.ErrInvalid), errors.Is(err, once.ErrCorrupt):
		b.Broke(Decision, key, "a person cannot decide: %v", err)
	case err == nil && d.decided[r.Owner] == who: // of the same decision, after an old list
	case err == nil && d.decided[r.Owner] != "" && now != r.Attempt: // nothing tells who decided, as another one has begun
	case err == nil && d.decided[r.Owner] != "":
		b.Broke(Decision, key, "%s and %s were both told that they have decided about attempt %d", d.decided[r.Owner], who, r.Attempt)
	case err == nil:
		d.decided[r.Owner] = who
	}
}

// wasTouched reports whether a person has tried to decide about a key.
func (b *book) wasTouched(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of(key).touched
}

// works records whether a caller waits for answers.
func (b *book) works(program string, busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy[program] = busy
}

// waiting returns the callers that wait for answers.
func (b *book) waiting() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for program, busy := range b.busy {
		if busy {
			all = append(all, program)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// isDone reports whether an error says that the work is done.
func isDone(err error) bool {
	return errors.Is(err, once.ErrOutcomeUnavailable) || errors.Is(err, once.ErrExpired)
}
