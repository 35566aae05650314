package eventhubsbroker

import (
	"context"
	"fmt"
	"strings"
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
	_ broker.LogLagger = (*source)(nil)
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

// LagFrom returns the number of sequence numbers after positions, which is the
// number of messages unless the hub is compacted. The service does not tell ages.
// It needs no members.
func (s *source) LagFrom(ctx context.Context, at map[string]broker.Position) (broker.Lag, error) {
	if err := s.check(); err != nil {
		return broker.Lag{}, err
	}
	client, err := s.options.consumer(s.hub, s.group)
	if err != nil {
		return broker.Lag{}, err
	}
	defer client.Close(context.WithoutCancel(ctx))
	hub, err := s.properties(ctx, client)
	if err != nil {
		return broker.Lag{}, err
	}
	for partition, p := range at {
		if log := logName(s.hub, hub); strings.HasPrefix(partition, s.hub+"/") && p.Log != log {
			return broker.Lag{}, fmt.Errorf("%w: the position in %s is one of %q, and the hub, which was recreated, is %q now", broker.ErrInvalid, partition, p.Log, log)
		}
	}
	var lag broker.Lag
	for _, id := range hub.PartitionIDs {
		has, err := s.partition(ctx, client, id)
		if err != nil {
			return broker.Lag{}, err
		}
		n, err := unread(s.hub+"/"+id, has, at)
		if err != nil {
			return broker.Lag{}, err
		}
		lag.Messages += n
	}
	again, err := s.properties(ctx, client)
	if err == nil && logName(s.hub, again) != logName(s.hub, hub) {
		err = fmt.Errorf("eventhubsbroker: %s: the hub was recreated just now", s.Name())
	}
	if err != nil {
		return broker.Lag{}, err
	}
	return lag, nil
}

// unread returns the number of messages of a partition after its position, or after
// its beginning if it has none.
func unread(partition string, has azeventhubs.PartitionProperties, at map[string]broker.Position) (int64, error) {
	next := int64(0)
	if p, ok := at[partition]; ok && p.Offset >= 0 {
		if has.LastEnqueuedSequenceNumber < p.Offset {
			return 0, fmt.Errorf("%w: %w", broker.ErrInvalid, endLost(partition, has, p.Offset))
		}
		next = p.Offset + 1
	}
	if has.IsEmpty { // BeginningSequenceNumber is that of no message
		return 0, nil
	}
	return max(has.LastEnqueuedSequenceNumber-max(next, has.BeginningSequenceNumber)+1, 0), nil
}

// logName returns the name of the log of a hub, which changes if the hub is
// recreated.
func logName(name string, hub azeventhubs.EventHubProperties) string {
	return name + "#" + hub.CreatedOn.UTC().Format(time.RFC3339Nano)
}

func (s *source) check() error {
	if s.group == "" {
		return fmt.Errorf("%w: %s needs a consumer group", broker.ErrInvalid, s.Name())
	}
	return checkHub(s.hub)
}

// partition asks the service for the properties of a partition.
func (s *source) partition(ctx context.Context, client *azeventhubs.ConsumerClient, id string) (azeventhubs.PartitionProperties, error) {
	has, err := abandon.Ask(ctx, func() (azeventhubs.PartitionProperties, error) { return client.GetPartitionProperties(ctx, id, nil) })
	if err != nil {
		return has, fmt.Errorf("eventhubsbroker: the service does not tell what it has of %s/%s: %w", s.hub, id, err)
	}
	return has, nil
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
	if s.members == nil {
		return nil, fmt.Errorf("%w: %s needs a store that all its processes use", broker.ErrInvalid, s.Name())
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
