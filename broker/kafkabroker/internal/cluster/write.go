package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/effectively-once/once/broker"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Write produces records, of which some may be nil, and waits until the broker
// has confirmed them or ctx has ended. It returns an error for each, which says
// what to do.
//
// The client does not get ctx. When the context of one record ends, the client
// fails all records that wait for the same partition, which may belong to other
// callers.
func Write(ctx context.Context, client *kgo.Client, rs []*kgo.Record) []error {
	type result struct {
		index int
		err   error
	}
	results := make(chan result, len(rs)) // a promise must not block, even if Write has returned
	errs := make([]error, len(rs))
	missing := 0
	for i, r := range rs {
		if r == nil {
			continue
		}
		missing++
		errs[i] = errUnconfirmed
		client.TryProduce(context.WithoutCancel(ctx), r, func(_ *kgo.Record, err error) { results <- result{i, err} })
	}
	for ; missing > 0; missing-- {
		select {
		case r := <-results:
			errs[r.index] = explain(client, rs[r.index], r.err)
		case <-ctx.Done():
			for i, err := range errs {
				if err == errUnconfirmed {
					errs[i] = explain(client, rs[i], fmt.Errorf("%w: %w", errUnconfirmed, context.Cause(ctx)))
				}
			}
			return errs
		}
	}
	return errs
}

var errUnconfirmed = errors.New("not confirmed in time, so publish it again")

// explain adds to an error of the client what to do about it.
func explain(client *kgo.Client, r *kgo.Record, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		client.PurgeTopicsFromProducing(r.Topic) // otherwise it would not notice that the topic is created, or recreated
		return fmt.Errorf("kafkabroker: topic %q: create it, or allow this client to write to it: %w", r.Topic, err)
	case errors.Is(err, kerr.MessageTooLarge) && tooLarge(client, r):
		return fmt.Errorf("%w: %d bytes are more than this client sends: raise kgo.ProducerBatchMaxBytes, and "+
			"max.message.bytes of topic %q: %w", broker.ErrInvalid, len(r.Value), r.Topic, err)
	case errors.Is(err, kgo.ErrMaxBuffered):
		return fmt.Errorf("kafkabroker: the buffer of the client is full: try again later: %w", err)
	}
	return fmt.Errorf("kafkabroker: writing to topic %q: %w", r.Topic, err)
}

// tooLarge reports whether a record is too large by itself. The broker may also
// refuse the batch that it was in.
func tooLarge(client *kgo.Client, r *kgo.Record) bool {
	limit, ok := client.OptValue(kgo.ProducerBatchMaxBytes).(int32)
	return ok && len(r.Value)+len(r.Key) > int(limit)-200
}
