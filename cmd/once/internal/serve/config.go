package serve

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/store"
)

// Config is what one process does. Texts may have ${NAME} in them, the environment's variable of that name.
type Config struct {
	URL    string        // of the database, see package target
	Listen string        // default 127.0.0.1:9464
	Stop   time.Duration // how long what has begun may go on after SIGTERM; default 20 seconds

	Relay    Relay
	Webhook  *Webhook // one of these three, or none: then nothing is published
	NATS     *NATS    `toml:"nats"`
	RabbitMQ *RabbitMQ

	Reconcile Reconcile
	Janitor   *Janitor // nil: nothing is forgotten
}

// Relay is what can be chosen of an outbox.Relay.
type Relay struct {
	Batch       int
	Overtaking  bool
	Then        string        // delete, keep or archive
	KeepFor     time.Duration `toml:"keep_for"`
	OnStuck     string        `toml:"on_stuck"` // hold or pass
	Lease       time.Duration
	PublishTime time.Duration `toml:"publish_time"`
	Poll        time.Duration
	Retry       struct {
		Attempts     int
		First, Limit time.Duration
	}
}

// Webhook is where webhooks go.
type Webhook struct {
	Source     string
	Default    Endpoint
	Topics     map[string]Endpoint
	Allow      []netip.Prefix
	AllowHTTP  bool `toml:"allow_http"`
	Timeout    time.Duration
	Concurrent int
}

// Endpoint is a receiver of webhooks.
type Endpoint struct {
	URL     string
	Secrets []string
}

// NATS is a server with JetStream.
type NATS struct{ URL string }

// RabbitMQ is a server, and the exchange that is published to.
type RabbitMQ struct{ URL, Exchange string }

// Reconcile is what becomes of work whose holder crashed, where that can be said without Go.
type Reconcile struct {
	Park  []string // operations whose unknown records wait for a person
	Every time.Duration
}

// Janitor is what can be chosen of a janitor.Janitor.
type Janitor struct {
	Every         time.Duration
	Batch         int
	Share         float64
	KeepShelved   time.Duration `toml:"keep_shelved"`
	KeepPublished time.Duration `toml:"keep_published"`
}

// ErrConfig is wrapped by what is wrong with the configuration.
var ErrConfig = errors.New("the configuration is not usable")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

// Load reads a file. It refuses settings that it does not know.
func Load(file string) (c Config, err error) {
	known, err := toml.DecodeFile(file, &c)
	if err != nil {
		return c, refuse("%s: %v", file, err)
	}
	var unknown []string
	for _, key := range known.Undecoded() {
		unknown = append(unknown, key.String())
	}
	if len(unknown) > 0 {
		return c, refuse("%s has settings that do not exist: %s", file, strings.Join(unknown, ", "))
	}
	return c, nil
}

// expand puts the environment into a text.
func expand(setting, text string) (string, error) {
	expanded, err := target.Expand(text)
	if err != nil {
		return "", refuse("%s: %s", setting, strings.TrimPrefix(err.Error(), target.ErrURL.Error()+": "))
	}
	return expanded, nil
}

func (e Endpoint) endpoint(setting string) (to webhookbroker.Endpoint, err error) {
	if to.URL, err = expand(setting+".url", e.URL); err != nil {
		return to, err
	}
	for _, secret := range e.Secrets {
		expanded, err := expand(setting+".secrets", secret)
		if err != nil {
			return to, err
		}
		to.Secrets = append(to.Secrets, expanded)
	}
	return to, nil
}

var (
	endings  = map[string]store.Ending{"": store.Delete, "delete": store.Delete, "keep": store.Keep, "archive": store.Archive}
	policies = map[string]outbox.OnStuck{"": outbox.Hold, "hold": outbox.Hold, "pass": outbox.Pass}
)

// relay is the relay without its store and publisher.
func (c *Config) relay() (*outbox.Relay, error) {
	then, ok := endings[c.Relay.Then]
	if !ok {
		return nil, refuse("relay.then is %q: it is one of delete, keep and archive", c.Relay.Then)
	}
	policy, ok := policies[c.Relay.OnStuck]
	if !ok {
		return nil, refuse("relay.on_stuck is %q: it is one of hold and pass", c.Relay.OnStuck)
	}
	r := &outbox.Relay{Batch: c.Relay.Batch, Overtaking: c.Relay.Overtaking, Then: then, KeepFor: c.Relay.KeepFor,
		OnStuck: policy, Lease: c.Relay.Lease, PublishTime: c.Relay.PublishTime, Poll: c.Relay.Poll, StopTime: c.Stop}
	r.Retry.Attempts, r.Retry.First, r.Retry.Limit = c.Relay.Retry.Attempts, c.Relay.Retry.First, c.Relay.Retry.Limit
	if c.Webhook != nil && r.Batch == 0 {
		r.Batch = webhookBatch
	}
	return r, nil
}

// webhookBatch is so small that one call of the publisher ends in time although receivers are slow.
const webhookBatch = 64
