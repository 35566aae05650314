package doctor

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/internal/abandon"
)

// busView is the examined part of a namespace of Azure Service Bus. Names are the
// same to the service in upper and lower case.
type busView struct {
	client   *admin.Client
	queues   []*busEntity // of the namespace
	topics   []*busTopic
	entities map[string]*busEntity // those that were read, by their kind and name in lower case
	listed   bool                  // the queues are known
	noTopics error                 // why the topics are not
}

// busEntity is a queue, or a subscription of a topic.
type busEntity struct {
	kind        string // queue or subscription
	name        string // of a subscription: topic/subscription
	lock        time.Duration
	life        time.Duration // of a message; 0: it has no end
	idle        time.Duration // after which the service deletes it; 0: it does not
	deliveries  int32
	sessions    bool
	deadExpired bool // expired messages are dead letters
	dropsFaults bool // messages on which a rule fails are not
	status      admin.EntityStatus
	forward     string     // where all messages go
	forwardDead string     // where dead letters go
	copies      *busCopies // nil: those of its topic count
}

// busTopic is a topic.
type busTopic struct {
	name       string
	life, idle time.Duration
	status     admin.EntityStatus
	copies     *busCopies
}

// busCopies is what a queue or topic does about copies.
type busCopies struct {
	detects, partitioned bool
	window               time.Duration
}

// busManagement returns a client of the management API of a namespace. It does not
// connect.
func busManagement(a address) (*admin.Client, error) {
	endpoint := a.take("endpoint")
	if err := a.rest(); err != nil {
		return nil, err
	}
	if strings.Trim(a.path, "/") != "" {
		return nil, refuse("it is not of the form servicebus://name:key@namespace")
	}
	connection, credential, err := azureNamespace(a)
	if err != nil {
		return nil, err
	}
	o := &admin.ClientOptions{ClientOptions: azcore.ClientOptions{Retry: policy.RetryOptions{MaxRetries: 1, RetryDelay: time.Second}}}
	if endpoint != "" {
		to, err := url.Parse(endpoint)
		if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" || !a.signed {
			return nil, refuse("endpoint is the URL of the management API of an emulator, which needs a name and a key")
		}
		o.PerCallPolicies = []policy.Policy{redirected{to}}
	}
	var client *admin.Client
	if credential != nil {
		client, err = admin.NewClient(a.hosts[0], credential, o)
	} else {
		client, err = admin.NewClientFromConnectionString(connection, o)
	}
	if err != nil {
		return nil, refuse("it is not of the form servicebus://name:key@namespace") // the text of err may contain the key
	}
	return client, nil
}

func dialServiceBus(ctx context.Context, a address) (*Broker, error) {
	client, err := busManagement(a)
	if err != nil {
		return nil, err
	}
	v := &busView{client: client, entities: make(map[string]*busEntity)}
	_, err = abandon.Ask(ctx, func() (admin.GetNamespacePropertiesResponse, error) { return client.GetNamespaceProperties(ctx, nil) })
	if err != nil && !refusedByAzure(err) {
		return nil, inOneLine(err)
	}
	return &Broker{name: a.String(), kind: "servicebus", close: func() {}, checks: []brokerCheck{
		{"servicebus-queues", v.look}, {"servicebus-topics", v.lookAtTopics}, {"servicebus-sources", v.sources},
	}}, nil
}

// redirected sends requests to an emulator.
type redirected struct{ to *url.URL }

func (r redirected) Do(req *policy.Request) (*http.Response, error) {
	req.Raw().URL.Scheme, req.Raw().URL.Host = r.to.Scheme, r.to.Host
	req.Raw().Host = r.to.Host
	return req.Next()
}

// refusedByAzure reports whether the service is there and does not answer, as when
// a key has no right to manage. It does not tell that from a wrong key.
func refusedByAzure(err error) bool {
	var e *azcore.ResponseError
	return errors.As(err, &e) && (e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden)
}

// inOneLine shortens an error of the client, which has the whole answer in it.
func inOneLine(err error) error {
	var e *azcore.ResponseError
	if !errors.As(err, &e) || e.RawResponse == nil {
		return err
	}
	var answer struct{ Detail string }
	if text, err := runtime.Payload(e.RawResponse); err == nil {
		_ = xml.Unmarshal(text, &answer) // the status says enough
	}
	return fmt.Errorf("the answer is %s: %s", e.RawResponse.Status, show.Line(answer.Detail))
}

const busPage = 100 // entities of an answer

// listQueues reads all queues.
func (v *busView) listQueues(ctx context.Context) error {
	queues := v.client.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: busPage})
	for queues.More() {
		page, err := queues.NextPage(ctx)
		if err != nil {
			return inOneLine(err)
		}
		for _, q := range page.Queues {
			var d isoDurations
			v.queues = append(v.queues, &busEntity{kind: "queue", name: q.QueueName, lock: d.read(q.LockDuration),
				life: d.read(q.DefaultMessageTimeToLive), idle: d.read(q.AutoDeleteOnIdle), deliveries: deref(q.MaxDeliveryCount),
				sessions: deref(q.RequiresSession), deadExpired: deref(q.DeadLetteringOnMessageExpiration), status: deref(q.Status),
				forward: deref(q.ForwardTo), forwardDead: deref(q.ForwardDeadLetteredMessagesTo),
				copies: &busCopies{deref(q.RequiresDuplicateDetection), deref(q.EnablePartitioning), d.read(q.DuplicateDetectionHistoryTimeWindow)}})
			if d.err != nil {
				return fmt.Errorf("queue %s: %w", show.Line(q.QueueName), d.err)
			}
		}
	}
	return nil
}

// listTopics reads all topics.
func (v *busView) listTopics(ctx context.Context) error {
	topics := v.client.NewListTopicsPager(&admin.ListTopicsOptions{MaxPageSize: busPage})
	for topics.More() {
		page, err := topics.NextPage(ctx)
		if err != nil {
			return inOneLine(err)
		}
		for _, t := range page.Topics {
			var d isoDurations
			v.topics = append(v.topics, &busTopic{name: t.TopicName, life: d.read(t.DefaultMessageTimeToLive), idle: d.read(t.AutoDeleteOnIdle),
				status: deref(t.Status),
				copies: &busCopies{deref(t.RequiresDuplicateDetection), deref(t.EnablePartitioning), d.read(t.DuplicateDetectionHistoryTimeWindow)}})
			if d.err != nil {
				return fmt.Errorf("topic %s: %w", show.Line(t.TopicName), d.err)
			}
		}
	}
	return nil
}

// subscriptions reads the subscriptions of a topic.
func (v *busView) subscriptions(ctx context.Context, t *busTopic) (all []*busEntity, err error) {
	pages := v.client.NewListSubscriptionsPager(t.name, &admin.ListSubscriptionsOptions{MaxPageSize: busPage})
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, inOneLine(err)
		}
		for _, sub := range page.Subscriptions {
			var d isoDurations
			e := &busEntity{kind: "subscription", name: t.name + "/" + sub.SubscriptionName, lock: d.read(sub.LockDuration),
				life: d.read(sub.DefaultMessageTimeToLive), idle: d.read(sub.AutoDeleteOnIdle), deliveries: deref(sub.MaxDeliveryCount),
				sessions: deref(sub.RequiresSession), deadExpired: deref(sub.DeadLetteringOnMessageExpiration),
				dropsFaults: !deref(sub.EnableDeadLetteringOnFilterEvaluationExceptions), status: deref(sub.Status),
				forward: deref(sub.ForwardTo), forwardDead: deref(sub.ForwardDeadLetteredMessagesTo)}
			if d.err != nil {
				return nil, fmt.Errorf("subscription %s: %w", show.Line(e.name), d.err)
			}
			if t.life > 0 && (e.life == 0 || t.life < e.life) {
				e.life = t.life // the topic's is the limit
			}
			all = append(all, e)
		}
	}
	return all, nil
}

func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// isoDurations reads durations in the form of ISO 8601, as the service writes them,
// and keeps the first error.
type isoDurations struct{ err error }

var isoForm = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$`)

// read returns a duration, or 0 if it is not told, or so long that it has no end.
func (d *isoDurations) read(text *string) time.Duration {
	if text == nil {
		return 0
	}
	parts := isoForm.FindStringSubmatch(*text)
	if parts == nil {
		d.err = cmp.Or(d.err, fmt.Errorf("%.40q is no duration", *text))
		return 0
	}
	var total float64 // seconds
	for i, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute, time.Second} {
		n, _ := strconv.ParseFloat(cmp.Or(parts[i+1], "0"), 64) // it has the form of a number
		total += n * unit.Seconds()
	}
	if total >= math.MaxInt64/float64(time.Second) {
		return 0
	}
	return time.Duration(total * float64(time.Second))
}

// wanted is like that of the survey, except for upper and lower case.
func (v *busView) wanted(s *survey, name string) bool {
	return s.wanted(name) || s.only == "" && slices.ContainsFunc(s.readers, func(r reader) bool { return strings.EqualFold(r.of[0], name) })
}

// wantedTopic reports whether to examine a topic: if it is wanted, or if a registered
// consumer reads a subscription of it.
func (v *busView) wantedTopic(s *survey, name string) bool {
	return s.wanted(name) || s.only == "" && slices.ContainsFunc(s.readers, func(r reader) bool {
		return r.as == "subscription" && len(r.of[0]) > len(name) && strings.EqualFold(r.of[0][:len(name)+1], name+"/")
	})
}

// add keeps an examined entity.
func (v *busView) add(e *busEntity) { v.entities[e.kind+" "+strings.ToLower(e.name)] = e }

// look examines the queues.
func (v *busView) look(ctx context.Context, s *survey) error {
	if err := v.listQueues(ctx); err != nil {
		return err
	}
	v.listed = true
	v.noTopics = v.listTopics(ctx) // the basic tier has none
	for _, q := range v.queues {
		v.add(q)
		if v.wanted(s, q.name) {
			v.loses(s, q)
			busDetects(s, "Queue "+show.Line(q.name), q.copies)
		}
	}
	return nil
}

// lookAtTopics examines the topics and their subscriptions. A pattern selects topics
// with their subscriptions, or subscriptions as topic/subscription.
func (v *busView) lookAtTopics(ctx context.Context, s *survey) error {
	if !v.listed {
		return errNotListed
	}
	if v.noTopics != nil {
		return v.noTopics
	}
	for _, t := range v.topics {
		whole := s.wanted(t.name)
		if !v.wantedTopic(s, t.name) && !strings.Contains(s.only, "/") {
			continue
		}
		subs, err := v.subscriptions(ctx, t)
		if err != nil {
			return fmt.Errorf("topic %s: %w", show.Line(t.name), err)
		}
		for _, sub := range subs {
			v.add(sub)
			if whole || v.wanted(s, sub.name) {
				v.loses(s, sub)
			}
		}
		if v.wantedTopic(s, t.name) {
			busTopicLoses(s, t, len(subs))
		}
	}
	return nil
}

const (
	fewDeliveries = 1000
	shortLock     = 10 * time.Second
	shortLife     = 24 * time.Hour
	shortWindow   = 2 * time.Minute
)

// loses reports settings by which a queue or subscription loses messages or their
// order.
func (v *busView) loses(s *survey, e *busEntity) {
	name := strings.ToUpper(e.kind[:1]) + e.kind[1:] + " " + show.Line(e.name)
	busEnds(s, name, e.status, e.idle)
	if e.forward != "" {
		v.forwards(s, name+" forwards messages", e.forward)
		return // nobody receives from it
	}
	if e.deliveries < fewDeliveries {
		s.found("servicebus-delivery-limit", Warning, fmt.Sprintf("%s gives messages up after %d deliveries.", name, e.deliveries),
			"Lost locks and returned messages count. It removes messages that a consumer is still retrying. Their effects do not happen, or happen after they became dead letters.",
			"Set the maximum delivery count to 2000, and let the consumer bound the attempts.")
	}
	if e.life > 0 && !e.deadExpired {
		severity := Warning
		if e.life < shortLife {
			severity = Unsafe
		}
		s.found("servicebus-expires", severity, fmt.Sprintf("%s deletes messages after %s.", name, span(e.life)),
			"A consumer that does not run for that long loses messages.",
			"Switch dead-lettering on expiration on, or raise the time to live above the longest downtime of a consumer.")
	} else if e.life > 0 && e.life < shortLife {
		s.found("servicebus-expires", Warning, fmt.Sprintf("%s moves messages to the dead letters after %s.", name, span(e.life)),
			"No consumer gets them there.", "Raise the time to live above the longest downtime of a consumer.")
	}
	if e.lock > 0 && e.lock < shortLock {
		s.found("servicebus-lock-duration", Warning, fmt.Sprintf("%s locks messages for %s.", name, show.Span(e.lock)),
			"After a short pause of a process or the network, its messages are also delivered to another process, and each of these deliveries counts.",
			"Set the lock duration to a minute.")
	}
	if !e.sessions {
		s.found("servicebus-unordered", Note, name+" does not require sessions.",
			"Its messages have no order, not even with one consumer.",
			"Where order matters, create it again with sessions, and set Options.Sessions of servicebusbroker. It cannot be changed.")
	}
	if e.dropsFaults && e.kind == "subscription" {
		s.found("servicebus-filter-errors", Warning, name+" drops messages on which one of its rules fails.",
			"They are confirmed and lost to it.", "Switch dead-lettering on filter evaluation exceptions on.")
	}
	if e.forwardDead != "" {
		v.forwards(s, name+" forwards dead letters", e.forwardDead)
	}
}

// forwards checks that the target exists, which is a URL in this namespace.
func (v *busView) forwards(s *survey, what, target string) {
	to := target
	if u, err := url.Parse(target); err == nil && u.Host != "" {
		to = strings.Trim(u.Path, "/")
	}
	if v.noTopics == nil && !slices.ContainsFunc(v.queues, func(q *busEntity) bool { return strings.EqualFold(q.name, to) }) &&
		!slices.ContainsFunc(v.topics, func(t *busTopic) bool { return strings.EqualFold(t.name, to) }) {
		s.found("servicebus-forward-missing", Unsafe, fmt.Sprintf("%s to %s, which does not exist.", what, show.Line(to)),
			"They do not arrive there, and nobody handles them.", "Create it, or remove the forwarding, and look for messages in the transfer dead-letter queue.")
	}
}

// busEnds reports a queue, topic or subscription that does not work, or is deleted
// by itself.
func busEnds(s *survey, name string, status admin.EntityStatus, idle time.Duration) {
	if status != "" && status != admin.EntityStatusActive {
		s.found("servicebus-disabled", Warning, fmt.Sprintf("%s is %s.", name, show.Line(string(status))),
			"Relays hold their messages, or consumers get none.", "Set its status to Active.")
	}
	if idle > 0 {
		s.found("servicebus-deleted-when-idle", Unsafe, fmt.Sprintf("%s is deleted when it is idle for %s.", name, span(idle)),
			"A consumer that does not run for that long may lose its messages, and what is published later.", "Set the time of auto-delete on idle to never.")
	}
}

// busDetects reports copies that duplicate detection does not find.
func busDetects(s *survey, name string, c *busCopies) {
	switch {
	case !c.detects:
		s.found("servicebus-no-duplicate-detection", Note, name+" does not detect duplicates.",
			"A message that is published again after a lost answer is there twice. The keys of a consumer find it.",
			"Nothing, unless other programs read it. It can be chosen only when a queue or topic is created.")
		return
	case c.partitioned:
		s.found("servicebus-duplicates-apart", Warning, name+" detects duplicates within a partition only, and is partitioned.",
			"Copies of a message in different partitions are not found. servicebusbroker sends a message again to the same partition. Other programs do so only if they "+
				"derive the session or the partition key from the message ID.",
			"Nothing, if only servicebusbroker publishes to it. Otherwise create it again without partitions.")
	}
	if c.window > 0 && c.window < shortWindow {
		s.found("servicebus-duplicate-window", Warning, fmt.Sprintf("%s detects duplicates for %s.", name, show.Span(c.window)),
			"A relay that publishes again later is not noticed, and the keys of a consumer must find the copy.", "Set the window to 10 minutes, the default.")
	}
}

func busTopicLoses(s *survey, t *busTopic, subscriptions int) {
	name := "Topic " + show.Line(t.name)
	busEnds(s, name, t.status, t.idle)
	busDetects(s, name, t.copies)
	if subscriptions == 0 {
		s.found("servicebus-nobody-subscribes", Unsafe, name+" has no subscription.",
			"Messages that are published to it are confirmed and lost.", "Create the subscription before anything is published, or delete the topic.")
	}
}

// sources checks that what registered consumers read exists, and how long it may
// come.
func (v *busView) sources(_ context.Context, s *survey) error {
	if !v.listed && len(s.readers) > 0 {
		return errNotListed
	}
	for _, r := range s.readers {
		if !v.wanted(s, r.of[0]) && !(r.as == "subscription" && s.wanted(path.Dir(r.of[0]))) {
			continue
		}
		e := v.entities[r.as+" "+strings.ToLower(r.of[0])]
		if e == nil && r.as == "subscription" && v.noTopics != nil {
			return v.noTopics
		}
		if e == nil {
			s.missing(r, "such "+r.as)
			continue
		}
		forward, life := e.forward, e.life
		if r.dead { // dead letters do not expire
			forward, life = e.forwardDead, 0
		}
		if forward != "" {
			s.found("servicebus-forwards", Warning, r.printed+": messages are forwarded to another place.", "The consumer gets none.",
				"Remove the forwarding, or read from the other place.")
			continue
		}
		s.outlived(r, life)
	}
	return nil
}
