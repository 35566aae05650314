package eventhubsbroker

import (
	"context"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/broker/internal/inflight"
	"github.com/effectively-once/once/internal/abandon"
)

// source opens sessions of a consumer group of a hub.
type source struct {
	options *Options
	fresh   time.Duration
	hub     string
	group   string
	members once.Store
}

var (
	_ broker.Placeless = (*source)(nil)
	_ broker.Located   = (*source)(nil)
)

func (s *source) Name() string { return fmt.Sprintf("eventhubs hub %s group %s", s.hub, s.group) }

// KeepsNoPlace marks the source as [broker.Placeless].
func (s *source) KeepsNoPlace() {}

// Location returns the time at which the hub was created. Host names are no
// facts, because a namespace may have an alias.
func (s *source) Location(ctx context.Context) (map[string]string, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	client, err := s.options.consumer(s.hub, s.group)
	if err != nil {
		return nil, err
	}
	defer client.Close(context.WithoutCancel(ctx))
	hub, err := s.properties(ctx, client)
	if err != nil {
		return nil, err
	}
	return map[string]string{"created": hub.CreatedOn.UTC().Format("20060102T150405.000000000Z")}, nil
}

func (s *source) check() error {
	if s.group == "" || s.members == nil {
		return fmt.Errorf("%w: %s needs a consumer group, and a store that all its processes use", broker.ErrInvalid, s.Name())
	}
	return checkHub(s.hub)
}

// properties asks the service for the properties of the hub.
func (s *source) properties(ctx context.Context, client *azeventhubs.ConsumerClient) (azeventhubs.EventHubProperties, error) {
	hub, err := abandon.Ask(ctx, func() (azeventhubs.EventHubProperties, error) { return client.GetEventHubProperties(ctx, nil) })
	if err != nil {
		return hub, fmt.Errorf("eventhubsbroker: %s: the service does not tell what it knows of the hub: %w", s.Name(), err)
	}
	return hub, nil
}

// Open starts to read the partitions of this session at their oldest messages. It
// fails if the hub does not exist, or if the service or the store does not answer
// before ctx ends.
func (s *source) Open(ctx context.Context, window int) (broker.Session, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	tracker, err := inflight.NewTracker[event](new(inflight.Cond), window)
	if err != nil {
		return nil, err
	}
	client, err := s.options.consumer(s.hub, s.group)
	if err != nil {
		return nil, err
	}
	o := &session{source: s, client: client, tracker: tracker, readers: make(map[string]*reader), look: make(chan struct{}, 1)}
	o.ctx, o.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := o.begin(ctx); err != nil {
		o.end()
		_ = client.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return o, nil
}
