package redisbroker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/redis/go-redis/v9"
)

// Options configures a Broker. The zero value is valid.
type Options struct {
	// ClaimAfter is how long the entries of a session stay its own after it was
	// last heard. A session renews its entries three times as often. Default: 30
	// seconds; at least 100 milliseconds.
	ClaimAfter time.Duration

	// SingleActive lets one session of a group at a time get messages, in the
	// order of the stream. The others stand by. All sessions of a group must have
	// the same value.
	SingleActive bool

	// DeadLetter is the stream that rejected messages are appended to, with their
	// fields and with the headers once-reason, once-topic and once-origin. If it
	// is empty, rejected messages are gone.
	DeadLetter string

	// Replicas is how many replicas must have received a message before Publish
	// returns. If fewer confirm it within ConfirmTimeout, Publish returns an
	// error, and the message may or may not be lost. Default: none.
	Replicas int

	// ConfirmTimeout is how long Publish waits for Replicas. It must be shorter
	// than the ReadTimeout of the client. Default: one second.
	ConfirmTimeout time.Duration
}

const (
	defaultClaimAfter     = 30 * time.Second
	shortestClaimAfter    = 100 * time.Millisecond
	defaultConfirmTimeout = time.Second
)

// Broker creates publishers and sources of a Redis. It is safe for concurrent
// use.
type Broker struct {
	client  redis.UniversalClient
	options Options
}

// New returns a Broker that connects as client does, which is a *redis.Client or
// a *redis.ClusterClient. It does not connect. Publishers and sessions have
// connections of their own. The client remains the caller's, who keeps it open
// while they are used. A nil Options means the defaults.
func New(client redis.UniversalClient, o *Options) *Broker {
	b := &Broker{client: client}
	if o != nil {
		b.options = *o
	}
	if b.options.ClaimAfter == 0 {
		b.options.ClaimAfter = defaultClaimAfter
	}
	if b.options.ConfirmTimeout == 0 {
		b.options.ConfirmTimeout = defaultConfirmTimeout
	}
	return b
}

// Publisher returns a publisher. The Topic of a message is the name of its
// stream, which is created with its first message.
func (b *Broker) Publisher() broker.Publisher { return newPublisher(b) }

// Group returns the messages of a consumer group of a stream. The group must
// exist when a session is opened: see [Broker.DeclareGroup].
func (b *Broker) Group(stream, group string) broker.Source {
	return &source{broker: b, stream: stream, group: group}
}

// DeclareGroup creates a group, and the stream if it does not exist. The group
// starts at the first message of the stream. An existing group is not changed.
func (b *Broker) DeclareGroup(ctx context.Context, stream, group string) error {
	if err := checkNames(stream, group); err != nil {
		return err
	}
	err := b.client.XGroupCreateMkStream(ctx, stream, group, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
		return fmt.Errorf("redisbroker: declare the group %q of the stream %q: %w", group, stream, err)
	}
	return nil
}

// checkNames returns an error if a stream or a group cannot be used.
func checkNames(stream, group string) error {
	if stream == "" || group == "" {
		return fmt.Errorf("%w: a stream and a group need names; these are %q and %q", broker.ErrInvalid, stream, group)
	}
	if _, ok := hashTag(stream); !ok {
		return fmt.Errorf("%w: the name %q of the stream has a } and no hash tag, so that no key of this package can share its slot",
			broker.ErrInvalid, stream)
	}
	return nil
}

// hashTag returns the name of a stream with a hash tag, which puts a key that
// contains it into the slot of the stream.
func hashTag(stream string) (tagged string, ok bool) {
	if _, rest, found := strings.Cut(stream, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			return stream, true
		}
	}
	return "{" + stream + "}", !strings.Contains(stream, "}")
}

// activeKey returns the key that names the active session of a group. The length
// keeps names apart that differ only in where the stream ends.
func activeKey(stream, group string) string {
	tagged, _ := hashTag(stream)
	return fmt.Sprintf("once:active:%d:%s:%s", len(stream), tagged, group)
}

// connect returns a client with connections of its own, which ends its calls with
// their contexts and repeats no command.
func connect(client redis.UniversalClient) (redis.UniversalClient, error) {
	switch c := client.(type) {
	case *redis.Client:
		return redis.NewClient(ownOptions(c)), nil
	case *redis.ClusterClient:
		o := *c.Options()
		o.ContextTimeoutEnabled, o.MaxRetries, o.MinIdleConns = true, -1, 0
		return redis.NewClusterClient(&o), nil
	}
	return nil, unsupported(client)
}

// ownOptions returns the options of another client that connects as c does. A
// processor of push notifications belongs to one client.
func ownOptions(c *redis.Client) *redis.Options {
	o := *c.Options()
	o.ContextTimeoutEnabled, o.MaxRetries, o.MinIdleConns, o.PushNotificationProcessor = true, -1, 0, nil
	return &o
}

func unsupported(client redis.UniversalClient) error {
	return fmt.Errorf("%w: the client is a %T: give a *redis.Client or a *redis.ClusterClient", broker.ErrInvalid, client)
}

// nodeOf returns a client of the server that has a stream.
func nodeOf(ctx context.Context, client redis.UniversalClient, stream string) (*redis.Client, error) {
	switch c := client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, stream)
	}
	return nil, unsupported(client)
}

// checkEviction returns an error if a server may evict streams.
func checkEviction(ctx context.Context, node *redis.Client) error {
	info, err := node.Info(ctx, "memory").Result()
	if err != nil {
		return fmt.Errorf("redisbroker: read the maxmemory-policy: %w", err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "maxmemory_policy" && strings.HasPrefix(value, "allkeys") {
			return fmt.Errorf("redisbroker: the maxmemory-policy is %s, which evicts streams with all their messages: set it to noeviction", value)
		}
	}
	return nil
}
