package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/BurntSushi/toml"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// Config configures one process. ${NAME} in URLs and secrets is replaced by
// that environment variable.
type Config struct {
	URL    string   // of the database, see package target
	Name   string   `toml:"-"` // of the target, if that was chosen
	Listen string   // default 127.0.0.1:9464
	Stop   Duration // how long running work may continue after SIGTERM; default 20 seconds

	Relay      Relay
	Webhook    *Webhook // at most one of these; without one, nothing is published
	EventGrid  *EventGrid
	NATS       *NATS `toml:"nats"`
	RabbitMQ   *RabbitMQ
	Redis      *Redis
	SQS        *SQS `toml:"sqs"`
	PubSub     *PubSub
	EventHubs  *EventHubs
	ServiceBus *ServiceBus

	Sealing Sealing // default: from the environment, see package target

	Reconcile Reconcile
	Janitor   *Janitor // nil: nothing is forgotten

	Console *consoleserver.Config // nil: none is served
}

// Duration requires a unit, because a bare 20 would be 20 nanoseconds.
type Duration time.Duration

// UnmarshalText parses a duration such as 1m30s.
func (d *Duration) UnmarshalText(text []byte) error {
	read, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration: write it with its unit, for example \"20s\"", text)
	}
	*d = Duration(read)
	return nil
}

// Relay configures an outbox.Relay.
type Relay struct {
	Batch       int
	Overtaking  bool
	Then        string   // delete, keep or archive
	KeepFor     Duration `toml:"keep_for"`
	OnStuck     string   `toml:"on_stuck"` // hold or pass
	Lease       Duration
	PublishTime Duration `toml:"publish_time"`
	Poll        Duration
	Retry       struct {
		Attempts     int
		First, Limit Duration
	}
}

// Sealing configures what is sealed with which secrets.
type Sealing struct {
	Secrets []string // ID:BASE64; the first one seals, "-" seals nothing
	Seal    []string // outcomes, shelf, outbox; default all
	Only    []string // as Seal; default none
}

// sealing returns the Sealing of the store.
func (s Sealing) sealing() (once.Sealing, error) {
	words := target.Sealing{Seal: s.Seal, Only: s.Only}
	for _, secret := range s.Secrets {
		expanded, err := expand("sealing.secrets", secret)
		if err != nil {
			return once.Sealing{}, err
		}
		words.Secrets = append(words.Secrets, expanded)
	}
	sealing, err := words.Parse()
	if err != nil {
		return sealing, refuse("sealing: %v", err)
	}
	return sealing, nil
}

// Webhook configures the webhooks.
type Webhook struct {
	Source     string
	Default    Endpoint
	Topics     map[string]Endpoint
	Allow      []netip.Prefix
	AllowHTTP  bool `toml:"allow_http"`
	Timeout    Duration
	Concurrent int
}

// Endpoint is a receiver of webhooks.
type Endpoint struct {
	URL     string
	Secrets []string
}

// EventGrid is a topic of Azure Event Grid. Without a key, the credentials of the
// environment are used.
type EventGrid struct {
	Endpoint, Source, Key string
	Allow                 []netip.Prefix
	AllowHTTP             bool `toml:"allow_http"`
	Timeout               Duration
}

// NATS is a server with JetStream.
type NATS struct{ URL string }

// RabbitMQ is a server and an exchange.
type RabbitMQ struct{ URL, Exchange string }

// SQS is the queues of an account, or its topics. Credentials come from where the
// AWS command line finds them.
type SQS struct {
	Region    string
	Endpoint  string // of SQS, or of SNS; default: the one of the region
	Topics    string // what the ARNs of topics begin with; empty: messages go to queues
	Unordered bool   // messages with an ordering key may go where no order is kept
}

// URL returns the URL of the queues for once doctor.
func (q *SQS) URL() string {
	query := make(url.Values)
	if q.Endpoint != "" {
		query.Set("endpoint", q.Endpoint)
	}
	if q.Topics != "" {
		query.Set("topics", q.Topics)
	}
	to := "sqs://" + q.Region // empty: that of the environment
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	return to
}

// Redis is a server or a cluster with streams.
type Redis struct {
	URL      string
	Replicas int // that must have a message before it counts as published
}

// PubSub is a project of Google Cloud.
type PubSub struct {
	Project  string
	Endpoint string // default: the global one, which keeps no order across regions
}

// URL returns the URL of the project for once doctor.
func (g *PubSub) URL() string {
	if g.Endpoint == "" {
		return "pubsub://" + g.Project
	}
	return "pubsub://" + g.Project + "?endpoint=" + url.QueryEscape(g.Endpoint)
}

// EventHubs is a namespace, with a connection string, or with the credentials of
// the environment.
type EventHubs struct{ Connection, Namespace string }

// ServiceBus is a namespace of Azure Service Bus, as EventHubs.
type ServiceBus struct{ Connection, Namespace string }

// URL returns the URL of the namespace for once doctor.
func (e *EventHubs) URL(secrets *secret.Set) (string, error) {
	u, parts, err := azureURL("eventhubs", e.Connection, e.Namespace, secrets)
	if err == nil && parts.Emulator {
		u.RawQuery = "emulator=true"
	}
	return u.String(), err
}

// URL returns the URL of the namespace for once doctor.
func (b *ServiceBus) URL(secrets *secret.Set) (string, error) {
	u, parts, err := azureURL("servicebus", b.Connection, b.Namespace, secrets)
	if err == nil && parts.Emulator {
		u.RawQuery = "endpoint=" + url.QueryEscape("http://"+net.JoinHostPort(u.Hostname(), emulatorManagement))
	}
	return u.String(), err
}

// emulatorManagement is the port at which the emulator of Service Bus is managed.
const emulatorManagement = "5300"

// Brokers returns the URL of the broker that is published to, for once doctor, or
// none.
func (c *Config) Brokers(secrets *secret.Set) (brokers []string, err error) {
	if c.NATS != nil {
		brokers = append(brokers, c.NATS.URL)
	}
	if c.RabbitMQ != nil {
		brokers = append(brokers, c.RabbitMQ.URL)
	}
	if c.Redis != nil {
		brokers = append(brokers, c.Redis.URL)
	}
	if c.PubSub != nil {
		brokers = append(brokers, c.PubSub.URL())
	}
	if c.SQS != nil {
		brokers = append(brokers, c.SQS.URL())
	}
	if c.EventHubs != nil {
		url, err := c.EventHubs.URL(secrets)
		if err != nil {
			return nil, err
		}
		brokers = append(brokers, url)
	}
	if c.ServiceBus != nil {
		url, err := c.ServiceBus.URL(secrets)
		if err != nil {
			return nil, err
		}
		brokers = append(brokers, url)
	}
	return brokers, nil
}

// azureURL returns the URL of a namespace, with the key or the signature of a
// connection string.
func azureURL(section, text, namespace string, secrets *secret.Set) (u url.URL, parts azeventhubs.ConnectionStringProperties, err error) {
	_, parts, err = azureConnection(section, text, namespace, secrets)
	u = url.URL{Scheme: section, Host: cmp.Or(parts.FullyQualifiedNamespace, namespace)}
	switch {
	case err != nil:
		return url.URL{}, parts, secrets.Error(err)
	case parts.SharedAccessSignature != nil:
		u.User = url.UserPassword("SharedAccessSignature", *parts.SharedAccessSignature)
	case parts.SharedAccessKey != nil:
		u.User = url.UserPassword(*parts.SharedAccessKeyName, *parts.SharedAccessKey)
	}
	return u, parts, nil
}

// Janitor configures a janitor.Janitor.
type Janitor struct {
	Every         Duration
	Batch         int
	Share         float64
	KeepShelved   Period `toml:"keep_shelved"`
	KeepPublished Period `toml:"keep_published"`
	KeepArchived  Period `toml:"keep_archived"`
}

// Period is a Duration that may also be "forever".
type Period time.Duration

// UnmarshalText parses a duration or "forever".
func (p *Period) UnmarshalText(text []byte) error {
	if string(text) == "forever" {
		*p = Period(janitor.Forever)
		return nil
	}
	return (*Duration)(p).UnmarshalText(text)
}

// ErrConfig is wrapped by errors about the configuration.
var ErrConfig = errors.New("the configuration is not usable")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

// leastKey is the length from which a word without colons and dots may be an
// access key, as those of Azure, which have 43 characters and more.
const leastKey = 40

// Load reads a file. It rejects unknown settings. It adds the secrets to the
// [secret.Set] of the context and keeps them out of errors.
func Load(ctx context.Context, file string) (c Config, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return c, refuse("%v", err)
	}
	secrets := secret.From(ctx)
	consoleserver.AddTokens(secrets, string(text))
	for word := range strings.FieldsFuncSeq(string(text), func(r rune) bool { return strings.ContainsRune(" \t\r\n\"'=,[]", r) }) {
		secrets.AddURL(word) // even if the file is invalid, because the error quotes it
		if at := strings.Index(word, "whsec_"); at >= 0 {
			secrets.Add(word[at:], strings.TrimPrefix(word[at:], "whsec_"))
		}
		if len(word) >= leastKey && !strings.ContainsAny(word, ":.$") {
			secrets.Add(word)
			secrets.Add(strings.FieldsFunc(word, func(r rune) bool { return strings.ContainsRune("/+%-_", r) })...) // errors quote parts
		}
	}
	known, err := toml.Decode(string(text), &c)
	if err != nil {
		return c, secrets.Error(refuse("%s: %v", file, err))
	}
	var unknown []string
	for _, key := range known.Undecoded() {
		unknown = append(unknown, key.String())
	}
	if len(unknown) > 0 {
		return c, secrets.Error(refuse("%s has settings that do not exist: %s", file, strings.Join(unknown, ", ")))
	}
	return c, nil
}

// expand replaces environment variables in a text.
func expand(setting, text string) (string, error) {
	expanded, err := target.Expand(text)
	if err != nil {
		return "", refuse("%s: %s", setting, strings.TrimPrefix(err.Error(), target.ErrURL.Error()+": "))
	}
	return expanded, nil
}

func (e Endpoint) endpoint(setting string, secrets *secret.Set) (to webhookbroker.Endpoint, err error) {
	if to.URL, err = expand(setting+".url", e.URL); err != nil {
		return to, err
	}
	secrets.AddURL(to.URL)
	for _, text := range e.Secrets {
		expanded, err := expand(setting+".secrets", text)
		if err != nil {
			return to, err
		}
		secrets.Add(expanded)
		to.Secrets = append(to.Secrets, expanded)
	}
	return to, nil
}

var (
	endings  = map[string]store.Ending{"": store.Delete, "delete": store.Delete, "keep": store.Keep, "archive": store.Archive}
	policies = map[string]outbox.OnStuck{"": outbox.HoldOrder, "hold": outbox.HoldOrder, "pass": outbox.Pass}
)

// relay returns the relay without its store and publisher.
func (c *Config) relay() (*outbox.Relay, error) {
	then, ok := endings[c.Relay.Then]
	if !ok {
		return nil, refuse("relay.then is %q: use delete, keep or archive", c.Relay.Then)
	}
	policy, ok := policies[c.Relay.OnStuck]
	if !ok {
		return nil, refuse("relay.on_stuck is %q: use hold or pass", c.Relay.OnStuck)
	}
	if c.Relay.KeepFor != 0 && then != store.Keep {
		return nil, refuse("relay.keep_for needs relay.then = \"keep\"")
	}
	retry := c.Relay.Retry
	r := &outbox.Relay{Batch: c.Relay.Batch, Overtaking: c.Relay.Overtaking, Then: then,
		KeepFor: time.Duration(c.Relay.KeepFor), OnStuck: policy, Lease: time.Duration(c.Relay.Lease),
		PublishTime: time.Duration(c.Relay.PublishTime), Poll: time.Duration(c.Relay.Poll), Retry: outbox.Retry{
			Attempts: retry.Attempts, First: time.Duration(retry.First), Limit: time.Duration(retry.Limit)}}
	if c.Webhook != nil && r.Batch == 0 {
		r.Batch = webhookBatch
	}
	return r, nil
}

// janitor returns the janitor without its store. By default it keeps published
// messages as long as the relay does.
func (c *Config) janitor() *janitor.Janitor {
	j := c.Janitor
	keep := time.Duration(j.KeepPublished)
	if keep == 0 && c.Relay.KeepFor != 0 {
		keep = janitor.Forever
	}
	return &janitor.Janitor{Every: time.Duration(j.Every), Batch: j.Batch, Share: j.Share, KeepShelved: time.Duration(j.KeepShelved),
		KeepPublished: keep, KeepArchived: time.Duration(j.KeepArchived)}
}

// webhookBatch is small, so that a call of the publisher ends in time even if
// receivers are slow.
const webhookBatch = 64
