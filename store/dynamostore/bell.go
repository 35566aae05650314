package dynamostore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodbstreams"
	streams "github.com/aws/aws-sdk-go-v2/service/dynamodbstreams/types"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// HearOutbox listens to the stream of the table for messages. It needs
// dynamodb:DescribeTable on the table, and DescribeStream, GetShardIterator and
// GetRecords on its stream. A table without a stream is an error, and is polled.
func (s *Store) HearOutbox(ctx context.Context) (store.Ear, error) {
	e := s.engine
	if e.invalid != nil {
		return nil, e.invalid
	}
	table, err := e.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &e.options.Table})
	if err != nil {
		return nil, fmt.Errorf("dynamostore: look for the stream of the table %s: %w", e.options.Table, err)
	}
	spec := table.Table.StreamSpecification
	if spec == nil || !aws.ToBool(spec.StreamEnabled) || table.Table.LatestStreamArn == nil {
		return nil, fmt.Errorf("dynamostore: the table %s has no stream: enable one with KEYS_ONLY, so that relays hear of messages at once",
			e.options.Table)
	}
	l := &ear{engine: e, client: e.streams(), stream: *table.Table.LatestStreamArn, shards: make(map[string]*string)}
	return l, l.find(ctx, streams.ShardIteratorTypeLatest)
}

// streams returns the client for streams: the one of the options, or one like
// that for the table.
func (e *engine) streams() *dynamodbstreams.Client {
	if e.options.Streams != nil {
		return e.options.Streams
	}
	o := e.client.Options()
	return dynamodbstreams.New(dynamodbstreams.Options{Region: o.Region, BaseEndpoint: o.BaseEndpoint, Credentials: o.Credentials,
		HTTPClient: o.HTTPClient, Retryer: o.Retryer, Logger: o.Logger, APIOptions: o.APIOptions})
}

// ear reads the shards of a stream. Nothing is read between two Waits, because the
// iterators keep its place.
type ear struct {
	engine *engine
	client *dynamodbstreams.Client
	stream string

	shards map[string]*string // the iterators, by ID; nil: the shard has ended
	heard  bool               // since the last Wait that returned nil
	read   time.Time          // when the shards were read
	found  time.Time          // when shards were looked for
	pause  time.Duration      // between reads
}

// A shard takes five reads in a second, of all its readers.
const (
	readEvery  = 250 * time.Millisecond
	readSeldom = 2 * time.Second
	findEvery  = 10 * time.Second
)

// Wait returns when a message was put that relays publish now or later.
func (l *ear) Wait(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.heard {
			l.heard = false
			return nil
		}
		l.pause = max(l.pause, readEvery)
		if err := backoff.Sleep(ctx, time.Until(l.read.Add(l.pause))); err != nil {
			return err
		}
		ended, err := l.readAll(ctx)
		if err == nil && (ended || time.Since(l.found) > findEvery) {
			// A shard that is new has begun after HearOutbox, so all of it is news.
			err = l.find(ctx, streams.ShardIteratorTypeTrimHorizon)
		}
		switch {
		case isThrottle(err):
			l.pause = min(2*l.pause, readSeldom)
		case err != nil:
			return fmt.Errorf("dynamostore: read the stream of the table %s: %w", l.engine.options.Table, err)
		default:
			l.pause = readEvery
		}
	}
}

func isThrottle(err error) bool {
	limit := (*streams.LimitExceededException)(nil)
	return errors.As(err, &limit) || retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary
}

// find gets iterators of shards that are not known.
func (l *ear) find(ctx context.Context, from streams.ShardIteratorType) error {
	for in := (&dynamodbstreams.DescribeStreamInput{StreamArn: &l.stream}); ; {
		out, err := l.client.DescribeStream(ctx, in)
		if err != nil {
			return err
		}
		for _, shard := range out.StreamDescription.Shards {
			id := aws.ToString(shard.ShardId)
			if _, known := l.shards[id]; known {
				continue
			}
			if from == streams.ShardIteratorTypeLatest && shard.SequenceNumberRange != nil &&
				shard.SequenceNumberRange.EndingSequenceNumber != nil {
				l.shards[id] = nil
				continue
			}
			begin, err := l.client.GetShardIterator(ctx, &dynamodbstreams.GetShardIteratorInput{StreamArn: &l.stream, ShardId: &id,
				ShardIteratorType: from})
			if err != nil {
				return err
			}
			l.shards[id] = begin.ShardIterator
		}
		if in.ExclusiveStartShardId = out.StreamDescription.LastEvaluatedShardId; in.ExclusiveStartShardId == nil {
			l.found = time.Now()
			return nil
		}
	}
}

// readAll reads each shard once. It reports whether one has ended, so there may be
// others in its place.
func (l *ear) readAll(ctx context.Context) (ended bool, err error) {
	l.read = time.Now()
	var mu sync.Mutex
	var reading sync.WaitGroup
	free := make(chan struct{}, 16)
	for id, iterator := range maps.Clone(l.shards) { // which the readers change
		if iterator == nil {
			continue
		}
		free <- struct{}{}
		reading.Go(func() {
			out, failed := l.client.GetRecords(ctx, &dynamodbstreams.GetRecordsInput{ShardIterator: iterator})
			<-free
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				if err == nil || isThrottle(err) {
					err = failed
				}
				return
			}
			l.shards[id] = out.NextShardIterator
			ended = ended || out.NextShardIterator == nil
			for _, r := range out.Records {
				l.heard = l.heard || l.engine.options.isNews(r)
			}
		})
	}
	reading.Wait()
	return ended, err
}

// isNews reports whether a record of the stream is of a message that is Pending
// or Delayed.
func (o *Options) isNews(r streams.Record) bool {
	if r.EventName == streams.OperationTypeRemove || r.Dynamodb == nil {
		return false
	}
	key, _ := r.Dynamodb.Keys[o.PartitionKey].(*streams.AttributeValueMemberS)
	if key == nil {
		return false
	}
	name, is := strings.CutPrefix(key.Value, o.docPrefix())
	return is && cas.WakesRelays(name)
}

// Far reports true, because a stream has the writes of all.
func (l *ear) Far() bool { return true }

// Close does nothing: an ear holds no connection.
func (l *ear) Close() {}
