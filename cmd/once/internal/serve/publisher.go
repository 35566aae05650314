package serve

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/eventhubsbroker"
	"github.com/effectively-once/once/broker/natsbroker"
	"github.com/effectively-once/once/broker/pubsubbroker"
	"github.com/effectively-once/once/broker/rabbitbroker"
	"github.com/effectively-once/once/broker/redisbroker"
	"github.com/effectively-once/once/broker/servicebusbroker"
	"github.com/effectively-once/once/broker/sqsbroker"
	"github.com/effectively-once/once/broker/webhookbroker"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
)

// publisher returns the configured publisher, or nil if nothing is published.
// The relay stores its errors with the messages, so they contain no secrets.
func (c *Config) publisher(secrets *secret.Set) (broker.Publisher, error) {
	p, err := c.bare(secrets)
	if err != nil || p == nil {
		return nil, secrets.Error(err)
	}
	return discreet{p, secrets}, nil
}

type discreet struct {
	broker.Publisher
	secrets *secret.Set
}

func (d discreet) Publish(ctx context.Context, ms []*broker.Message) []error {
	errs := d.Publisher.Publish(ctx, ms)
	for i, err := range errs {
		errs[i] = d.secrets.Error(err)
	}
	return errs
}

func (c *Config) bare(secrets *secret.Set) (broker.Publisher, error) {
	given := 0
	for _, there := range []bool{c.Webhook != nil, c.EventGrid != nil, c.NATS != nil, c.RabbitMQ != nil, c.Redis != nil, c.SQS != nil, c.PubSub != nil, c.EventHubs != nil, c.ServiceBus != nil} {
		if there {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, refuse("only one of webhook, eventgrid, nats, rabbitmq, redis, sqs, pubsub, eventhubs and servicebus can be configured: a database has one publisher")
	case c.Webhook != nil:
		return c.Webhook.publisher(secrets)
	case c.EventGrid != nil:
		return c.EventGrid.publisher(secrets)
	case c.NATS != nil:
		return c.NATS.publisher(secrets)
	case c.RabbitMQ != nil:
		return c.RabbitMQ.publisher(secrets)
	case c.Redis != nil:
		return c.Redis.publisher(secrets)
	case c.SQS != nil:
		return c.SQS.publisher()
	case c.PubSub != nil:
		return c.PubSub.publisher()
	case c.EventHubs != nil:
		return c.EventHubs.publisher(secrets)
	case c.ServiceBus != nil:
		return c.ServiceBus.publisher(secrets)
	}
	return nil, nil
}

func (w *Webhook) publisher(secrets *secret.Set) (broker.Publisher, error) {
	o := webhookbroker.Options{Source: w.Source, Allow: w.Allow, AllowHTTP: w.AllowHTTP,
		Timeout: time.Duration(w.Timeout), Concurrent: w.Concurrent, Topics: make(map[string]webhookbroker.Endpoint)}
	var err error
	if o.Default, err = w.Default.endpoint("webhook.default", secrets); err != nil {
		return nil, err
	}
	for topic, to := range w.Topics {
		if o.Topics[topic], err = to.endpoint("webhook.topics."+topic, secrets); err != nil {
			return nil, err
		}
	}
	p, err := webhookbroker.New(o)
	if err != nil {
		return nil, refuse("%s", inFile("webhook", err))
	}
	return p, nil
}

func (e *EventGrid) publisher(secrets *secret.Set) (broker.Publisher, error) {
	o := webhookbroker.EventGridOptions{Source: e.Source, Allow: e.Allow, AllowHTTP: e.AllowHTTP, Timeout: time.Duration(e.Timeout)}
	var err error
	if o.Endpoint, err = expand("eventgrid.endpoint", e.Endpoint); err != nil {
		return nil, err
	}
	secrets.AddURL(o.Endpoint)
	if o.Key, err = expand("eventgrid.key", e.Key); err != nil {
		return nil, err
	}
	secrets.Add(o.Key)
	if e.Key == "" {
		credential, err := azidentity.NewDefaultAzureCredential(nil)
		if err != nil {
			return nil, refuse("eventgrid.key is missing, and there are no credentials of Azure: %v", err)
		}
		o.Token = func(ctx context.Context) (string, error) {
			token, err := credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{"https://eventgrid.azure.net/.default"}})
			return token.Token, err
		}
	}
	p, err := webhookbroker.NewEventGrid(o)
	if err != nil {
		return nil, refuse("%s", inFile("eventgrid", err))
	}
	return p, nil
}

// natsPublisher also closes its connection.
type natsPublisher struct {
	broker.Publisher
	connection *nats.Conn
}

func (p natsPublisher) Close() error {
	err := p.Publisher.Close()
	p.connection.Close()
	return err
}

func (n *NATS) publisher(secrets *secret.Set) (broker.Publisher, error) {
	url, err := expand("nats.url", n.URL)
	if err != nil {
		return nil, err
	}
	secrets.AddURL(url)
	if url == "" {
		return nil, refuse("nats.url is missing: write nats://user:password@host:4222")
	}
	connection, err := nats.Connect(url, nats.Name("once serve"), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort()) // rights to publish are granted at the server
	if err != nil { // its text may contain the password
		return nil, refuse("nats.url is invalid: write nats://user:password@host:4222")
	}
	js, err := jetstream.New(connection)
	if err != nil {
		return nil, errors.Join(err, connection.Drain())
	}
	return natsPublisher{natsbroker.New(js, nil).Publisher(), connection}, nil
}

func (r *RabbitMQ) publisher(secrets *secret.Set) (broker.Publisher, error) {
	url, err := expand("rabbitmq.url", r.URL)
	if err != nil {
		return nil, err
	}
	secrets.AddURL(url)
	if _, err := amqp.ParseURI(url); err != nil { // its text may contain the password
		return nil, refuse("rabbitmq.url is missing or invalid: write amqps://user:password@host:5671/vhost")
	}
	return rabbitbroker.New(url, nil).Publisher(r.Exchange), nil
}

// pubsubPublisher also closes its client.
type pubsubPublisher struct {
	broker.Publisher
	client *pubsub.Client
}

func (p pubsubPublisher) Close() error { return errors.Join(p.Publisher.Close(), p.client.Close()) }

// publisher uses the credentials of the environment.
func (g *PubSub) publisher() (broker.Publisher, error) {
	project, err := expand("pubsub.project", g.Project)
	if err != nil {
		return nil, err
	}
	if project == "" {
		return nil, refuse("pubsub.project is missing: write the ID of the project")
	}
	client, err := target.NewPubSub(context.Background(), project, g.Endpoint)
	if err != nil {
		return nil, refuse("pubsub: %v", err)
	}
	return pubsubPublisher{pubsubbroker.New(client, nil).Publisher(), client}, nil
}

// redisPublisher also closes its client.
type redisPublisher struct {
	broker.Publisher
	client redis.UniversalClient
}

func (p redisPublisher) Close() error { return errors.Join(p.Publisher.Close(), p.client.Close()) }

func (r *Redis) publisher(secrets *secret.Set) (broker.Publisher, error) {
	url, err := expand("redis.url", r.URL)
	if err != nil {
		return nil, err
	}
	secrets.AddURL(url)
	if r.Replicas < 0 {
		return nil, refuse("redis.replicas is %d: give at least 0", r.Replicas)
	}
	client, err := target.NewRedis(url)
	if err != nil { // its text may contain the password
		return nil, refuse("redis.url is missing or invalid: write rediss://user:password@host:6379")
	}
	return redisPublisher{redisbroker.New(client, &redisbroker.Options{Replicas: r.Replicas}).Publisher(), client}, nil
}

func (q *SQS) publisher() (broker.Publisher, error) {
	if q.Topics != "" && !target.IsTopicPrefix(q.Topics) {
		return nil, refuse("sqs.topics is %q: write arn:aws:sns:eu-north-1:123456789012: with the last colon, or leave it out for queues", q.Topics)
	}
	loaded, err := target.LoadAWS(context.Background(), q.Region)
	if err != nil {
		return nil, err
	}
	if loaded.Region == "" {
		return nil, refuse("sqs.region is missing, and the environment has none")
	}
	if q.Endpoint != "" {
		loaded.BaseEndpoint = &q.Endpoint
	}
	o := &sqsbroker.Options{Unordered: q.Unordered}
	if q.Topics != "" {
		return sqsbroker.NewSNSPublisher(sns.NewFromConfig(loaded), q.Topics, o), nil
	}
	return sqsbroker.New(sqs.NewFromConfig(loaded), o).Publisher(), nil
}

func (e *EventHubs) publisher(secrets *secret.Set) (broker.Publisher, error) {
	connection, credential, err := azure("eventhubs", e.Connection, e.Namespace, secrets)
	if err != nil {
		return nil, err
	}
	b, err := eventhubsbroker.New(&eventhubsbroker.Options{ConnectionString: connection, Namespace: e.Namespace, Credential: credential})
	if err != nil {
		return nil, err
	}
	return b.Publisher(), nil
}

// serviceBusPublisher also closes its client.
type serviceBusPublisher struct {
	broker.Publisher
	client *azservicebus.Client
}

func (p serviceBusPublisher) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return errors.Join(p.Publisher.Close(), p.client.Close(ctx))
}

const closeTime = 5 * time.Second

func (b *ServiceBus) publisher(secrets *secret.Set) (broker.Publisher, error) {
	connection, credential, err := azure("servicebus", b.Connection, b.Namespace, secrets)
	if err != nil {
		return nil, err
	}
	var client *azservicebus.Client
	if connection != "" {
		client, err = azservicebus.NewClientFromConnectionString(connection, nil)
	} else {
		client, err = azservicebus.NewClient(b.Namespace, credential, nil)
	}
	if err != nil {
		return nil, err
	}
	return serviceBusPublisher{servicebusbroker.New(client, nil).Publisher(), client}, nil
}

// azure returns the connection string of a namespace, or else the credentials of
// the environment.
func azure(section, text, namespace string, secrets *secret.Set) (connection string, credential azcore.TokenCredential, err error) {
	connection, _, err = azureConnection(section, text, namespace, secrets)
	if err != nil || connection != "" {
		return connection, nil, err
	}
	if credential, err = azidentity.NewDefaultAzureCredential(nil); err != nil {
		return "", nil, refuse("%s.connection is missing, and there are no credentials of Azure: %v", section, err)
	}
	return "", credential, nil
}

// azureConnection returns a connection string and its parts, or none if there is a
// namespace instead.
func azureConnection(section, text, namespace string, secrets *secret.Set) (connection string, parts azeventhubs.ConnectionStringProperties, err error) {
	if connection, err = expand(section+".connection", text); err != nil {
		return "", parts, err
	}
	if (connection == "") == (namespace == "") {
		return "", parts, refuse("%s needs either a connection, which is a connection string, or a namespace, such as shop.servicebus.windows.net", section)
	}
	if connection == "" {
		return "", parts, nil
	}
	secrets.Add(connection)
	parts, err = azeventhubs.ParseConnectionString(connection) // Service Bus has the same form
	if err != nil || parts.EntityPath != nil {                 // its text may contain the key
		return "", parts, refuse("%s.connection is invalid: write the connection string of a namespace, and not of one of its hubs or queues", section)
	}
	for _, part := range []*string{parts.SharedAccessKey, parts.SharedAccessSignature} {
		if part != nil {
			secrets.Add(*part)
		}
	}
	return connection, parts, nil
}
