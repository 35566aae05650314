package eventhubsbroker

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
)

// Options configures a Broker. Either ConnectionString, or Namespace and
// Credential, is required.
type Options struct {
	// ConnectionString is that of a namespace, without EntityPath.
	ConnectionString string

	// Namespace is the host name of a namespace, such as
	// "shop.servicebus.windows.net".
	Namespace  string
	Credential azcore.TokenCredential

	// Client configures the connections. Its RetryOptions and InstanceID are not
	// used.
	Client azeventhubs.ConsumerClientOptions

	// Lease is how long the partitions of a process that has died wait for
	// another one. A session renews its lease, and looks for other sessions, three
	// times in it. Default: 30 seconds.
	Lease time.Duration

	// HandOver is how long a session waits for its deliveries in flight when a
	// partition moves to another session. Twice this time later, the new session
	// takes the partition. Default: 15 seconds.
	HandOver time.Duration
}

// Broker creates publishers and sources of one namespace. It has no connection
// of its own.
type Broker struct {
	options Options
	fresh   time.Duration // how long it is known that a hub was not recreated
}

// New returns a Broker. It does not connect.
func New(o *Options) (*Broker, error) {
	b := &Broker{fresh: time.Second}
	if o != nil {
		b.options = *o
	}
	byName := b.options.Namespace != "" && b.options.Credential != nil
	if (b.options.ConnectionString != "") == byName {
		return nil, fmt.Errorf("%w: eventhubsbroker needs either a ConnectionString, or a Namespace and a Credential", broker.ErrInvalid)
	}
	b.options.Lease = cmp.Or(max(b.options.Lease, 0), 30*time.Second)
	b.options.HandOver = cmp.Or(max(b.options.HandOver, 0), 15*time.Second)
	b.options.Client.InstanceID = ""
	// The caller tries again, and opens another session: a client that reconnects
	// on its own may continue in a hub that was recreated.
	b.options.Client.RetryOptions = azeventhubs.RetryOptions{MaxRetries: -1}
	return b, nil
}

// Publisher returns a publisher to the hubs of the namespace. It connects on
// first use.
func (b *Broker) Publisher() broker.Publisher {
	return &publisher{options: &b.options, hubs: make(map[string]*azeventhubs.ProducerClient)}
}

// Log returns the messages of a hub, for consumers that keep their own position.
// The consumer group must exist; "$Default" always does. The sessions of the
// group share the partitions through keys in members, which all processes use.
// It may be the store of the consumer. Only Open needs it.
func (b *Broker) Log(hub, group string, members once.Store) broker.Source {
	return &source{options: &b.options, fresh: b.fresh, hub: hub, group: group, members: members}
}

// consumer returns a client for a hub.
func (o *Options) consumer(hub, group string) (*azeventhubs.ConsumerClient, error) {
	client := o.Client
	if o.ConnectionString != "" {
		c, err := azeventhubs.NewConsumerClientFromConnectionString(o.ConnectionString, hub, group, &client)
		return c, badOptions(err)
	}
	c, err := azeventhubs.NewConsumerClient(o.Namespace, hub, group, o.Credential, &client)
	return c, badOptions(err)
}

// producer returns a client for a hub.
func (o *Options) producer(hub string) (*azeventhubs.ProducerClient, error) {
	client := &azeventhubs.ProducerClientOptions{
		ApplicationID:    o.Client.ApplicationID,
		CustomEndpoint:   o.Client.CustomEndpoint,
		NewWebSocketConn: o.Client.NewWebSocketConn,
		RetryOptions:     o.Client.RetryOptions,
		TLSConfig:        o.Client.TLSConfig,
	}
	if o.ConnectionString != "" {
		c, err := azeventhubs.NewProducerClientFromConnectionString(o.ConnectionString, hub, client)
		return c, badOptions(err)
	}
	c, err := azeventhubs.NewProducerClient(o.Namespace, hub, o.Credential, client)
	return c, badOptions(err)
}

// badOptions is the error of creating a client, which does not connect.
func badOptions(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: eventhubsbroker: the options are refused: %w", broker.ErrInvalid, err)
}

// checkHub checks the name of a hub, because the service reports an invalid name
// as a hub that does not exist.
func checkHub(hub string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	if hub != "" && len(hub) <= 256 && strings.Trim(hub, letters+"._-") == "" &&
		strings.Contains(letters, hub[:1]) && strings.Contains(letters, hub[len(hub)-1:]) {
		return nil
	}
	return fmt.Errorf("%w: the hub %q: a name has up to 256 letters, digits, dots, dashes and underscores, and begins and ends "+
		"with a letter or a digit", broker.ErrInvalid, hub)
}

// stolen reports whether a receiver was refused or cut off because of another.
func stolen(err error) bool {
	var e *azeventhubs.Error
	return errors.As(err, &e) && e.Code == azeventhubs.ErrorCodeOwnershipLost || refused(err)
}

// refused reports whether a receiver was refused because another has a higher
// owner level. The client hides the condition in the text.
func refused(err error) bool {
	var e *azeventhubs.Error
	return errors.As(err, &e) && e.Code != azeventhubs.ErrorCodeOwnershipLost && strings.Contains(e.Error(), "amqp:link:stolen")
}
