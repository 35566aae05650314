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

// Broker is a connected broker.
type Broker struct {
	name   string // without a password
	kind   string // first word of the names of its sources
	checks []brokerCheck
	close  func()
}

// brokerCheck is a single check. It returns an error if the broker denies
// access.
type brokerCheck struct {
	name string
	look func(context.Context, *survey) error
}

// String names the broker without user and password.
func (b *Broker) String() string { return b.name }

// Close closes the connection.
func (b *Broker) Close() { b.close() }

// schemes are the schemes of broker URLs.
var schemes = map[string]func(context.Context, address) (*Broker, error){
	"nats": dialNATS, "tls": dialNATS, "kafka": dialKafka, "http": dialRabbitAPI, "https": dialRabbitAPI,
	"amqp": dialAMQP, "amqps": dialAMQP, "redis": dialRedis, "rediss": dialRedis, "pubsub": dialPubSub,
	"sqs": dialSQS, "servicebus": dialServiceBus, "eventhubs": dialEventHubs,
}

// dialTime limits connecting to a broker, and lookTime limits a check.
const dialTime, lookTime = 10 * time.Second, 20 * time.Second

// address is the URL of a broker. It may have several hosts, which net/url does
// not support.
type address struct {
	scheme, user, password string
	signed                 bool // it has a user
	hosts                  []string
	path                   string
	query                  url.Values
}

// String omits secrets.
func (a address) String() string { return a.scheme + "://" + strings.Join(a.hosts, ",") + a.path }

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBroker, fmt.Sprintf(format, args...))
}

// ErrBroker is wrapped by errors about the URL of a broker, as opposed to
// errors of the broker.
var ErrBroker = errors.New("the broker's URL is not usable")

// parse never includes the URL in its errors, because it may contain a
// password.
func parse(from string, secrets *secret.Set) (a address, err error) {
	if from, err = target.Expand(from); err != nil {
		return a, refuse("%v", strings.TrimPrefix(err.Error(), target.ErrURL.Error()+": "))
	}
	secrets.AddURL(from)
	scheme, rest, ok := strings.Cut(from, "://")
	if _, known := schemes[scheme]; !ok || !known {
		return a, refuse("it must begin with nats://, tls://, kafka://, redis://, rediss://, pubsub://, sqs://, servicebus://, eventhubs://, amqp:// or amqps://, or with http:// or https:// for the management plugin of RabbitMQ")
	}
	a.scheme = scheme
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	hosts := rest[:end]
	if strings.Contains(rest[end:], "@") {
		return a, refuse("there is an @ after a /, a ? or a #: in the user and the password, write these as %%2F, %%3F and %%23, " +
			"or put the value in an environment variable and write ${NAME}")
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
			return a, refuse("in the user and the password, write special characters as %%XX, or put the value in an environment variable and " +
				"write ${NAME}; give the user and the password once, before the first host")
		}
	}
	if a.query, err = url.ParseQuery(query); err != nil {
		return a, refuse("the parameters after the ? cannot be parsed: write special characters as %%XX")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" && scheme != "sqs" { // the environment may have the region
			return a, refuse("a host is missing")
		}
		if _, err := url.Parse("x://" + host); err != nil || strings.Contains(host, "@") { // user:password without an @
			return a, refuse("a host is not of the form host:port")
		}
		a.hosts = append(a.hosts, host)
	}
	return a, nil
}

// take removes and returns a parameter.
func (a *address) take(name string) string {
	value := a.query.Get(name)
	a.query.Del(name)
	return value
}

// rest rejects parameters that were not taken.
func (a *address) rest() error {
	for name := range a.query {
		return refuse("there is no parameter %q for %s", name, a.scheme)
	}
	return nil
}

// Dial connects to the broker of a URL. It adds the secrets of the URL to the
// [secret.Set] of the context and keeps them out of errors.
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
	return nil, secrets.Error(fmt.Errorf("cannot connect to %s: %w", a, err))
}

// survey is the state that the checks of a broker share.
type survey struct {
	report  *Report
	readers []reader // registered consumers of this kind of broker
	only    string   // pattern of names, or empty
	merged  map[Finding]int
}

// reader is a registered consumer.
type reader struct {
	name    string
	of      []string          // streams, topics or a queue
	as      string            // the durable consumer or the group; in Service Bus, queue or subscription
	facts   map[string]string // of the source
	dead    bool              // it reads dead letters
	untold  bool              // it does not learn how long the broker can deliver a message
	log     bool              // it reads a NATS stream as a log, so the broker does not know it
	seen    time.Duration
	kept    time.Duration // the shortest KeepKey of the sampled keys; 0: there are none
	sample  int           // number of sampled keys
	places  []store.Position
	printed string
}

// maxTold limits how many things a merged finding lists.
const maxTold = 10

// found adds a finding. Findings of one name about several things are merged.
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
		f.What += "\x00There are more."
	}
}

// wanted reports whether to examine a name: if it matches the pattern, or else
// if a registered consumer reads it, or else always.
func (s *survey) wanted(name string) bool {
	if s.only != "" {
		ok, _ := path.Match(s.only, name)
		return ok
	}
	return len(s.readers) == 0 || slices.ContainsFunc(s.readers, func(r reader) bool { return slices.Contains(r.of, name) })
}

// ExamineBroker runs all checks of a broker. With a store, it examines what the
// registered consumers read and compares it with their needs; without one, it
// examines everything. A non-empty pattern of path.Match selects by name
// instead. It returns an error only if the broker cannot be reached.
func ExamineBroker(ctx context.Context, b *Broker, t *target.Target, only string) (Report, error) {
	r := Report{Checks: []string{}, Findings: []Finding{}}
	if _, err := path.Match(only, ""); err != nil {
		return r, refuse("%q is not a valid pattern of names", only)
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
				"This check could not run.",
				"Give the user the privilege to read this, or check it by hand.")
		default:
			r.Checks = append(r.Checks, c.name)
		}
	}
	for i := range r.Findings {
		r.Findings[i].What = strings.ReplaceAll(r.Findings[i].What, "\x00", " ")
	}
	return r, nil
}

// consumerStore is a store that consumers work on.
type consumerStore interface {
	store.Registry
	Positions(ctx context.Context, consumer string) ([]store.Position, error)
}

// readers returns the registered consumers of a kind of broker.
func readers(ctx context.Context, t *target.Target, kind string) (all []reader, err error) {
	registry, err := target.Need[consumerStore](t, target.ARegistry)
	if err != nil {
		return nil, err
	}
	registered, err := registry.Consumers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range registered {
		r, ok := readerOf(c)
		if !ok || !c.IsLegible() || !strings.HasPrefix(c.Source, kind+" ") {
			continue
		}
		if r.kept, r.sample, err = kept(ctx, t, c.Keys); err != nil {
			return nil, err
		}
		if r.places, err = registry.Positions(ctx, c.Keys); err != nil {
			return nil, err
		}
		if store.Corrupt(r.places) != nil { // which another check shows
			r.places = nil
		}
		all = append(all, r)
	}
	return all, nil
}

// readerOf parses the name of a source, as the adapters of this project write
// it.
func readerOf(c store.Consumer) (reader, bool) {
	r := reader{name: c.Name, seen: c.Seen, printed: show.Line(c.Name) + " (" + show.Line(c.Source) + ")"}
	source, facts := store.SplitSource(c.Source)
	r.facts = facts
	switch w := strings.Fields(source); {
	case len(w) == 5 && w[0] == "nats" && w[1] == "stream" && w[3] == "consumer":
		r.of, r.as = w[2:3], w[4]
	case len(w) == 6 && w[0] == "nats" && w[1] == "stream" && w[3] == "log":
		r.of, r.as, r.log = w[2:3], w[5], true
	case len(w) >= 5 && w[0] == "kafka" && w[1] == "topic" && w[3] == "group":
		r.of = strings.Split(w[2], ",")
		_, r.as, _ = strings.Cut(source, " group ")
	case len(w) == 5 && w[0] == "eventhubs" && w[1] == "hub" && w[3] == "group":
		r.of, r.as = w[2:3], w[4]
	case strings.HasPrefix(source, "rabbitmq queue "):
		r.of = []string{strings.TrimPrefix(source, "rabbitmq queue ")}
	case strings.HasPrefix(source, "servicebus queue "), strings.HasPrefix(source, "servicebus subscription "):
		r.untold, r.as = true, w[1]
		name, dead := strings.CutSuffix(strings.TrimPrefix(source, "servicebus "+r.as+" "), " dead letters")
		r.of, r.dead = []string{name}, dead
	case strings.HasPrefix(source, "sqs queue "):
		r.of = []string{strings.TrimPrefix(source, "sqs queue ")}
	case strings.HasPrefix(source, "pubsub subscription "):
		r.of = []string{strings.TrimPrefix(source, "pubsub subscription ")}
	case strings.HasPrefix(source, "redis stream ") && strings.Contains(source, " group "):
		at := strings.LastIndex(source, " group ")
		r.of, r.as = []string{strings.TrimPrefix(source[:at], "redis stream ")}, source[at+len(" group "):]
	default:
		return r, false
	}
	return r, true
}

const (
	sampled    = 20 // keys per consumer
	sampleTime = 3 * time.Second
)

// kept returns the shortest time that sampled keys of an operation are kept,
// and the size of the sample, which is 0 for a store without tables.
func kept(ctx context.Context, t *target.Target, operation string) (least time.Duration, n int, err error) {
	if t.Tables == nil {
		return 0, 0, nil
	}
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
	err = t.Tables.DB.QueryRowContext(ctx, fmt.Sprintf("SELECT min(key_until - updated), count(*) FROM %s WHERE key_until IS NOT NULL AND %s IN (%s)",
		t.Tables.Names.Table(), column, strings.Join(digests, ", "))).Scan(&micros, &n)
	if err != nil || micros == nil {
		return 0, 0, err
	}
	least = time.Duration(*micros) * time.Microsecond
	if least > time.Hour { // it was computed from a moment before the change
		least = least.Round(time.Minute)
	}
	return least, n, nil
}

// outlived compares how long a source can deliver with how long the keys of its
// readers are kept. 0 means for ever.
func (s *survey) outlived(r reader, horizon time.Duration) {
	if r.kept == 0 || horizon > 0 && horizon <= r.kept {
		return
	}
	can := "for ever"
	means := "A message that is older than its forgotten key and is delivered again is parked, because it may have been handled. " +
		"A message without a time, or one published again with a new time, is handled again."
	if horizon > 0 {
		can = "for " + span(horizon)
		if !r.untold {
			means += " The consumer will not start again until this is fixed."
		}
	}
	s.found("redelivery-outlives-keys", Warning,
		fmt.Sprintf("%s: messages can be delivered %s, and keys are kept for %s (%s checked).", r.printed, can, span(r.kept),
			show.Count(r.sample, "key was", "keys were")),
		means, "Raise Policy.KeepKey above the retention of the broker, or shorten the retention.")
}

// span formats a duration in days and hours, which is finer than show.Span.
func span(d time.Duration) string {
	text := show.Span(d)
	if hours := d % (24 * time.Hour) / time.Hour; d >= 48*time.Hour && hours > 0 {
		text += fmt.Sprintf(" %d h", hours)
	}
	return text
}

// missing reports that the source of a registered consumer does not exist. A
// consumer that has not been seen for long may be gone for good.
func (s *survey) missing(r reader, what string) {
	if r.seen < goneFor {
		s.found("source-missing", Warning, fmt.Sprintf("%s: there is no %s.", r.printed, what),
			"The consumer reads from another broker, or its source was deleted. If it was deleted, the messages not yet handled are lost.",
			"Check that this is the right broker and account. If the source was deleted, send the messages again that were not handled.")
	}
}

const goneFor = 24 * time.Hour
