package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/store"
)

// Broker is a broker that is connected.
type Broker struct {
	name   string // what it is called, without a password
	kind   string // the first word of the names of its sources
	checks []brokerCheck
	close  func()
}

// brokerCheck looks at one thing. What a broker does not let its caller see is its error.
type brokerCheck struct {
	name string
	look func(context.Context, *survey) error
}

// String names the broker without user and password.
func (b *Broker) String() string { return b.name }

// Close ends the connection.
func (b *Broker) Close() { b.close() }

// schemes are what the URL of a broker can begin with.
var schemes = map[string]func(context.Context, address) (*Broker, error){
	"nats": dialNATS, "tls": dialNATS, "kafka": dialKafka, "http": dialRabbitAPI, "https": dialRabbitAPI,
	"amqp": dialAMQP, "amqps": dialAMQP,
}

// dialTime bounds how long it is tried to reach a broker, and lookTime one check.
const dialTime, lookTime = 10 * time.Second, 20 * time.Second

// address is the URL of a broker. It may have several hosts, which package url does not know.
type address struct {
	scheme, user, password string
	signed                 bool // there is a user
	hosts                  []string
	path                   string
	query                  url.Values
}

// String has nothing that is secret.
func (a address) String() string { return a.scheme + "://" + strings.Join(a.hosts, ",") + a.path }

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroker, fmt.Sprintf(format, args...))
}

// ErrBroker is wrapped by what is wrong with the URL of a broker, as opposed to the broker itself.
var ErrBroker = errors.New("the broker's URL is not usable")

// parse never repeats the URL in its errors: there may be a password in it.
func parse(from string, secrets *secret.Set) (a address, err error) {
	if from, err = target.Expand(from); err != nil {
		return a, refuse("%v", strings.TrimPrefix(err.Error(), target.ErrURL.Error()+": "))
	}
	secrets.AddURL(from)
	scheme, rest, ok := strings.Cut(from, "://")
	if _, known := schemes[scheme]; !ok || !known {
		return a, refuse("it has to begin with nats://, tls://, kafka://, amqp://, amqps://, or http:// or https:// for the management plugin of RabbitMQ")
	}
	a.scheme = scheme
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	hosts := rest[:end]
	if strings.Contains(rest[end:], "@") {
		return a, refuse("there is an @ behind a /, a ? or a #: in the user and the password, write these as %%2F, %%3F and %%23, " +
			"or put them into a variable and write ${NAME}")
	}
	rest, _, _ = strings.Cut(rest[end:], "#")
	way, query, _ := strings.Cut(rest, "?")
	a.path = way
	if at := strings.LastIndex(hosts, "@"); at >= 0 {
		user, password, _ := strings.Cut(hosts[:at], ":")
		secrets.Add(password)
		a.signed, hosts = true, hosts[at+1:]
		var errs [3]error
		a.user, errs[0] = url.PathUnescape(user)
		a.password, errs[1] = url.PathUnescape(password)
		if errors.Join(errs[:]...) != nil || strings.ContainsAny(user+password, "@,") {
			return a, refuse("in the user and the password, write special characters as %%XX, or put them into a variable and write " +
				"${NAME}; give them once, in front of the first host")
		}
	}
	if a.query, err = url.ParseQuery(query); err != nil {
		return a, refuse("what is behind the ? cannot be parsed: write special characters as %%XX")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" {
			return a, refuse("a host is missing")
		}
		if _, err := url.Parse("x://" + host); err != nil || strings.Contains(host, "@") { // user:password without an @
			return a, refuse("a host is not like host:port")
		}
		a.hosts = append(a.hosts, host)
	}
	return a, nil
}

// take reads a parameter.
func (a *address) take(name string) string {
	value := a.query.Get(name)
	a.query.Del(name)
	return value
}

// rest refuses parameters that nobody has taken.
func (a *address) rest() error {
	for name := range a.query {
		return refuse("there is no parameter %q for %s", name, a.scheme)
	}
	return nil
}

// Dial connects to the broker that a URL names.
//
// The URL's secrets are added to the [secret.Set] of the context, and are not in the errors.
func Dial(ctx context.Context, from string) (*Broker, error) {
	secrets := secret.From(ctx)
	a, err := parse(from, secrets)
	if err != nil {
		return nil, secrets.Error(err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	b, err := schemes[a.scheme](ctx, a)
	if err == nil || errors.Is(err, ErrBroker) {
		return b, secrets.Error(err)
	}
	return nil, secrets.Error(fmt.Errorf("%s cannot be asked: %w", a, err))
}

// survey is what the checks of a broker work on.
type survey struct {
	report  *Report
	readers []reader // what the store knows of consumers at this kind of broker
	only    string   // a pattern of names, if not empty
	merged  map[Finding]int
}

// reader is a consumer that the store knows.
type reader struct {
	name    string
	of      []string // streams, topics or a queue
	as      string   // the durable consumer, or the group
	log     bool     // it reads a log of NATS, so the broker does not know it
	seen    time.Duration
	kept    time.Duration // how long the keys that were looked at are kept, at least; 0: there are none
	sample  int           // how many that are
	places  []store.Position
	printed string
}

// most findings of one name are told of one by one.
const maxTold = 10

// found says what was seen of one thing. What is found of several is one finding.
func (s *survey) found(name string, sev Severity, what, means, do string) {
	same := Finding{Name: name, Severity: sev, Means: means, Do: do}
	at, more := s.merged[same]
	if !more {
		s.merged[same] = len(s.report.Findings)
		f := same
		f.What = what
		s.report.Findings = append(s.report.Findings, f)
		return
	}
	f := &s.report.Findings[at]
	switch n := strings.Count(f.What, "\x00") + 1; {
	case n < maxTold:
		f.What += "\x00" + what
	case n == maxTold:
		f.What += "\x00And others."
	}
}

// wanted says whether something is to be looked at: what the pattern says, else what the store's consumers read, else all.
func (s *survey) wanted(name string) bool {
	if s.only != "" {
		ok, _ := path.Match(s.only, name)
		return ok
	}
	return len(s.readers) == 0 || slices.ContainsFunc(s.readers, func(r reader) bool { return slices.Contains(r.of, name) })
}

// ExamineBroker makes all checks of a broker. With a store, it compares what the store's consumers need, and looks at what
// they read; else at all that there is. A pattern that is not empty, of path.Match, says what instead. Only a broker that
// cannot be reached is an error.
func ExamineBroker(ctx context.Context, b *Broker, t *target.Target, only string) (Report, error) {
	r := Report{Checks: []string{}, Findings: []Finding{}}
	if _, err := path.Match(only, ""); err != nil {
		return r, refuse("%q is no pattern of names", only)
	}
	s := &survey{report: &r, only: only, merged: make(map[Finding]int)}
	checks := b.checks
	if t != nil {
		known := brokerCheck{b.kind + "-consumers-of-the-store", func(ctx context.Context, s *survey) (err error) {
			s.readers, err = readers(ctx, t, b.kind)
			return err
		}}
		checks = append([]brokerCheck{known}, checks...)
	}
	for _, c := range checks {
		looking, cancel := context.WithTimeout(ctx, lookTime)
		err := c.look(looking, s)
		cancel()
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case err != nil:
			s.found(notChecked, Note, fmt.Sprintf("%s: %v", c.name, secret.From(ctx).Error(err)),
				"This could not be looked at, so nothing is known about it.",
				"Give the user the right to read it, or look yourself.")
		default:
			r.Checks = append(r.Checks, c.name)
		}
	}
	for i := range r.Findings {
		r.Findings[i].What = strings.ReplaceAll(r.Findings[i].What, "\x00", " ")
	}
	return r, nil
}

// readers are the consumers of a store at one kind of broker.
func readers(ctx context.Context, t *target.Target, kind string) (all []reader, err error) {
	registered, err := t.Store.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range registered {
		r, ok := readerOf(c)
		if !ok || !strings.HasPrefix(c.Source, kind+" ") {
			continue
		}
		if r.kept, r.sample, err = kept(ctx, t, c.Keys); err != nil {
			return nil, err
		}
		if r.places, err = t.Store.Positions(ctx, c.Keys); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// readerOf reads the name of a source, as the adapters of this project write it.
func readerOf(c store.Consumer) (reader, bool) {
	r := reader{name: c.Name, seen: c.Seen, printed: show.Line(c.Name) + " (" + show.Line(c.Source) + ")"}
	source, _ := store.SplitSource(c.Source)
	switch w := strings.Fields(source); {
	case len(w) == 5 && w[0] == "nats" && w[1] == "stream" && w[3] == "consumer":
		r.of, r.as = w[2:3], w[4]
	case len(w) == 6 && w[0] == "nats" && w[1] == "stream" && w[3] == "log":
		r.of, r.as, r.log = w[2:3], w[5], true
	case len(w) >= 5 && w[0] == "kafka" && w[1] == "topic" && w[3] == "group":
		r.of = strings.Split(w[2], ",")
		_, r.as, _ = strings.Cut(source, " group ")
	case strings.HasPrefix(source, "rabbitmq queue "):
		r.of = []string{strings.TrimPrefix(source, "rabbitmq queue ")}
	default:
		return r, false
	}
	return r, true
}

const (
	sampled    = 20 // keys of each consumer
	sampleTime = 3 * time.Second
)

// kept is how long the keys of an operation are kept, by some of them: the shortest time, and how many they are.
func kept(ctx context.Context, t *target.Target, operation string) (least time.Duration, n int, err error) {
	q := once.RecordQuery{Operation: operation, Status: []once.Status{once.Done}, Limit: sampled}
	var digests []string
	for begun := time.Now(); len(digests) < sampled && time.Since(begun) < sampleTime; {
		page, next, err := t.List(ctx, q)
		if err != nil {
			return 0, 0, err
		}
		for _, r := range page {
			digest := r.Key.UUID()
			literal := fmt.Sprintf("x'%x'", digest[:])
			if t.Engine == target.PostgreSQL {
				literal = fmt.Sprintf("'%x'::uuid", digest[:])
			}
			digests = append(digests, literal)
		}
		if next == (once.Key{}) {
			break
		}
		q.After = next
	}
	if len(digests) == 0 {
		return 0, 0, nil
	}
	column := `"key"`
	if t.Engine == target.MySQL {
		column = "`key`"
	}
	var micros *int64
	err = t.DB.QueryRowContext(ctx, fmt.Sprintf("SELECT min(key_until - updated), count(*) FROM %s WHERE key_until IS NOT NULL AND %s IN (%s)",
		t.Names.Table(), column, strings.Join(digests, ", "))).Scan(&micros, &n)
	if err != nil || micros == nil {
		return 0, 0, err
	}
	least = time.Duration(*micros) * time.Microsecond
	if least > time.Hour { // it was reckoned from a moment before the change
		least = least.Round(time.Minute)
	}
	return least, n, nil
}

// outlived compares how long a source can deliver with how long the keys of its readers are kept. For ever is 0.
func (s *survey) outlived(r reader, horizon time.Duration) {
	if r.kept == 0 || horizon > 0 && horizon <= r.kept {
		return
	}
	can := "for ever"
	means := "A message that was made before its keys were forgotten, and comes again after that, is parked by its time: it may have been " +
		"handled. One without a time, or that somebody has published again with a new time, runs again."
	if horizon > 0 {
		can = "for " + span(horizon)
		means += " The consumer does not start again before this is mended."
	}
	s.found("redelivery-outlives-keys", Warning,
		fmt.Sprintf("%s: messages can be delivered %s, and keys are kept for %s (%s looked at).", r.printed, can, span(r.kept),
			show.Count(r.sample, "key was", "keys were")),
		means, "Raise Policy.KeepKey above the retention of the broker, or shorten that.")
}

// span is a duration in days and hours, where show.Span has days.
func span(d time.Duration) string {
	text := show.Span(d)
	if hours := d % (24 * time.Hour) / time.Hour; d >= 48*time.Hour && hours > 0 {
		text += fmt.Sprintf(" %d h", hours)
	}
	return text
}

// missing says that what a consumer of the store reads is not there. Who has not been seen for long may be gone for good.
func (s *survey) missing(r reader, what string) {
	if r.seen < goneFor {
		s.found("source-missing", Warning, fmt.Sprintf("%s: there is no %s.", r.printed, what),
			"That consumer reads from another broker, or what it read was deleted: what it had not handled is lost.",
			"See that this is the right broker and account. If it was deleted, send again what was not handled.")
	}
}

const goneFor = 24 * time.Hour
