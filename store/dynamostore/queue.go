package dynamostore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// PlaceOf returns "", because a transaction may write any item.
func (e *engine) PlaceOf(tx *Tx) (string, error) {
	_, err := e.Changes(tx)
	return "", err
}

// queueOf returns how the names of messages in a lane and a state begin, as
// "out/a/0/". The index has a partition for each. Other documents are in none.
func queueOf(name string) (queue string, ok bool) {
	if !cas.IsMessage(name) {
		return "", false
	}
	parts := strings.SplitAfterN(name, "/", 4)
	if len(parts) < 4 {
		return "", false
	}
	return parts[0] + parts[1] + parts[2], true
}

// inQueue is the partition key of messages in the index. It ends with a slash, so
// it is not that of a shard of open records.
func (o *Options) inQueue(queue string) string { return o.Prefix + queue }

// Queued returns messages from the index, which lags behind the table.
func (e *engine) Queued(ctx context.Context, prefix, after string, limit int) (found []cas.NamedDoc, err error) {
	if e.invalid != nil {
		return nil, e.invalid
	}
	queue, ok := queueOf(prefix)
	if !ok {
		return nil, fmt.Errorf("%w: dynamostore finds documents of one lane and state, and not those whose names begin with %q",
			once.ErrInvalid, prefix)
	}
	// Names have no space and no tilde. The first sorts before all that they may
	// have, and the second after.
	o := &e.options
	begin := o.docPrefix()
	from := begin + max(prefix, after+" ")
	to := begin + prefix + "~"
	if from > to {
		return nil, nil
	}
	in := &dynamodb.QueryInput{
		TableName: &o.Table, IndexName: &o.Index,
		KeyConditionExpression:    aws.String("#queue = :queue AND #pk BETWEEN :from AND :to"),
		ExpressionAttributeNames:  map[string]string{"#queue": o.Index, "#pk": o.PartitionKey},
		ExpressionAttributeValues: item{":queue": text(o.inQueue(queue)), ":from": text(from), ":to": text(to)},
	}
	for len(found) < limit {
		in.Limit = aws.Int32(int32(limit - len(found)))
		out, err := patiently(ctx, func() (*dynamodb.QueryOutput, error) { return e.client.Query(ctx, in, e.watch(nil)) })
		if err != nil {
			return nil, explain(err)
		}
		for _, it := range out.Items {
			key, _ := it[o.PartitionKey].(*types.AttributeValueMemberS)
			if key == nil {
				return nil, fmt.Errorf("%w: an item of the index %s in %s has no key", once.ErrCorrupt, o.Index, o.Table)
			}
			name := strings.TrimPrefix(key.Value, begin)
			found = append(found, cas.NamedDoc{DocName: cas.DocName{Name: name}, Doc: e.decodeDoc(name, it)})
		}
		// A page of the service also ends after 1 MB.
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			break
		}
	}
	return found, nil
}

// Move makes moves, each with a request of its own.
func (e *engine) Move(ctx context.Context, moves []cas.Move) ([]bool, error) {
	if e.invalid != nil {
		return nil, e.invalid
	}
	return cas.MoveEach(moves, func(m cas.Move) (bool, error) {
		if m.To == "" {
			return e.remove(ctx, m)
		}
		return e.rename(ctx, m)
	})
}

// still returns the condition that a document exists, with a version if there is
// one.
func (e *engine) still(version string) (expression *string, names map[string]string, values item) {
	if version == "" {
		return aws.String("attribute_exists(#pk)"), map[string]string{"#pk": e.options.PartitionKey}, nil
	}
	return e.unchanged(version)
}

// remove deletes a document. If an attempt has had no answer, and a later one
// finds nothing, the first has probably deleted it, so that is reported. It may
// have been somebody else, who then has ended or moved the same message.
func (e *engine) remove(ctx context.Context, m cas.Move) (made bool, err error) {
	in := &dynamodb.DeleteItemInput{TableName: &e.options.Table, Key: e.options.docKey(m.Name),
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld}
	in.ConditionExpression, in.ExpressionAttributeNames, in.ExpressionAttributeValues = e.still(m.Over)
	var tried attempts
	_, err = patiently(ctx, func() (*dynamodb.DeleteItemOutput, error) {
		return e.client.DeleteItem(ctx, in, e.watch(&tried))
	})
	if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
		return tried.unanswered && len(refused.Item) == 0, nil
	}
	return err == nil, explain(err)
}

// rename writes a document under another name, and deletes it under the old one.
// The token makes repeated attempts one.
func (e *engine) rename(ctx context.Context, m cas.Move) (made bool, err error) {
	change := cas.DocChange{DocName: cas.DocName{Name: m.To}, Is: m.Is}
	token := rand.Text()
	in := &dynamodb.TransactWriteItemsInput{ClientRequestToken: &token}
	put := e.docWrite(change)
	expression, names, values := e.still(m.Over)
	if m.To == m.Name { // a transaction writes an item once
		put.Put.ConditionExpression, put.Put.ExpressionAttributeNames, put.Put.ExpressionAttributeValues = expression, names, values
	} else {
		in.TransactItems = append(in.TransactItems, types.TransactWriteItem{Delete: &types.Delete{TableName: &e.options.Table,
			Key: e.options.docKey(m.Name), ConditionExpression: expression, ExpressionAttributeNames: names,
			ExpressionAttributeValues: values}})
	}
	in.TransactItems = append(in.TransactItems, put)
	_, err = patientlyIf(ctx, passesForMove, func() (*dynamodb.TransactWriteItemsOutput, error) {
		return e.client.TransactWriteItems(ctx, in, e.watch(nil))
	})
	if canceled := (*types.TransactionCanceledException)(nil); errors.As(err, &canceled) {
		for _, reason := range canceled.CancellationReasons {
			if codeOf(reason) == codeCondition {
				return false, nil
			}
		}
	}
	return err == nil, explain(err)
}

// passesForMove reports whether a move may be tried again. Nothing but its own
// conditions decide it, so it waits for transactions in flight.
func passesForMove(err error) bool {
	if canceled := (*types.TransactionCanceledException)(nil); errors.As(err, &canceled) {
		for _, reason := range canceled.CancellationReasons {
			if codeOf(reason) == codeConflict {
				return true
			}
		}
	}
	inProgress := (*types.TransactionInProgressException)(nil)
	return passes(err) || errors.As(err, &inProgress)
}
