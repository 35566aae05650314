package dynamostore

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

const defaultPage, largestPage, maxLooks = 100, 1000, 1000

// List returns records that are Running, Unknown or Parked, by the digest of
// their keys, from an index that lags behind the table. There is no index of the
// others, so a query that may select them is [once.ErrInvalid]: name statuses, or
// one key by its UUID. A page looks at fewer than 2,000 records.
func (s *Store) List(ctx context.Context, q once.RecordQuery) (page once.RecordPage, err error) {
	e := s.engine
	if e.invalid != nil {
		return page, e.invalid
	}
	if q.UUID == [16]byte{} && !cas.AsksOnlyForOpen(q) {
		return page, fmt.Errorf("%w: dynamostore lists only records that are running, unknown or parked: ask for these statuses",
			once.ErrInvalid)
	}
	if err := ctx.Err(); err != nil {
		return page, err
	}
	now, err := e.clock.Now(ctx)
	if err != nil {
		return page, err
	}
	if q.UUID != [16]byte{} {
		return e.listOne(ctx, q, now)
	}
	limit := min(cmp.Or(max(q.Limit, 0), defaultPage), largestPage)
	after, first := "", 0
	if q.After != (once.Key{}) {
		id := q.After.UUID()
		after, first = hex.EncodeToString(id[:]), shardOf(id)
	}
	looks := 0
	for n := first; n < shards; {
		rows, damaged, last, err := e.openAfter(ctx, e.options.shard(n), after, max(limit, defaultPage))
		if err != nil {
			return once.RecordPage{}, err
		}
		page.Damaged = append(page.Damaged, damaged...)
		for _, row := range rows {
			page.Next = row.Key
			if rec := row.Record(now); cas.Selects(q, rec, now) {
				page.Records = append(page.Records, rec)
			}
			if len(page.Records) == limit {
				return page, nil
			}
		}
		if looks += len(rows); looks >= maxLooks {
			return page, nil
		}
		if after = last; last == "" {
			n++
		}
	}
	page.Next = once.Key{}
	return page, nil
}

// openAfter returns rows of the index after a digest, and why others cannot be
// read. There may be more in that shard after last, unless that is empty.
func (e *engine) openAfter(ctx context.Context, shard, after string, limit int) (rows []cas.Stored, damaged []error, last string, err error) {
	o := &e.options
	out, err := patiently(ctx, func() (*dynamodb.QueryOutput, error) {
		return e.client.Query(ctx, &dynamodb.QueryInput{
			TableName: &o.Table, IndexName: &o.Index, Limit: aws.Int32(int32(limit)),
			KeyConditionExpression:    aws.String("#open = :shard AND #pk > :after"),
			ExpressionAttributeNames:  map[string]string{"#open": o.Index, "#pk": o.PartitionKey},
			ExpressionAttributeValues: item{":shard": text(shard), ":after": text(o.Prefix + after)},
		}, e.watch(nil))
	})
	if err != nil {
		return nil, nil, "", explain(err)
	}
	for _, it := range out.Items {
		if row, err := o.decode(it); err != nil {
			damaged = append(damaged, err)
		} else {
			rows = append(rows, row)
		}
	}
	if key, is := out.LastEvaluatedKey[o.PartitionKey].(*types.AttributeValueMemberS); is {
		last = strings.TrimPrefix(key.Value, o.Prefix)
	}
	return rows, damaged, last, nil
}

// listOne lists at most one record.
func (e *engine) listOne(ctx context.Context, q once.RecordQuery, now cas.Now) (page once.RecordPage, err error) {
	row, err := e.load(ctx, q.UUID)
	if errors.Is(err, once.ErrCorrupt) {
		page.Damaged = []error{err}
		return page, nil
	}
	after := q.After.UUID()
	if err != nil || row.Version == "" || q.After != (once.Key{}) && string(q.UUID[:]) <= string(after[:]) {
		return page, err
	}
	rec := row.Record(now)
	if rec.Outcome.Body = nil; cas.Selects(q, rec, now) {
		page.Records = []once.Record{rec}
	}
	return page, nil
}
