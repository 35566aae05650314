package dynamostore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/servicedate"
	"github.com/effectively-once/once/store/cas"
)

// engine is DynamoDB as a [cas.QueueEngine].
type engine struct {
	client  *dynamodb.Client
	options Options
	invalid error
	clock   cas.LearnedClock
}

// Load returns the row of a key.
func (e *engine) Load(ctx context.Context, k once.Key) (cas.Stored, error) {
	return e.load(ctx, k.UUID())
}

func (e *engine) load(ctx context.Context, id [16]byte) (cas.Stored, error) {
	it, err := e.get(ctx, id)
	if err != nil || len(it) == 0 {
		return cas.Stored{}, err
	}
	return e.options.decode(it)
}

// get returns the item of a key.
func (e *engine) get(ctx context.Context, id [16]byte) (item, error) {
	return e.getItem(ctx, e.options.key(id))
}

func (e *engine) getItem(ctx context.Context, key item) (item, error) {
	if e.invalid != nil {
		return nil, e.invalid
	}
	in := &dynamodb.GetItemInput{TableName: &e.options.Table, Key: key, ConsistentRead: aws.Bool(true)}
	out, err := patiently(ctx, func() (*dynamodb.GetItemOutput, error) { return e.client.GetItem(ctx, in, e.watch(nil)) })
	if err != nil {
		return nil, explain(err)
	}
	return out.Item, nil
}

// Put writes a row if the stored one has the version over.
func (e *engine) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	if e.invalid != nil {
		return cas.Stored{}, e.invalid
	}
	put, version, err := e.put(cas.Change{Was: cas.Stored{Version: over}, Is: row})
	if err != nil {
		return cas.Stored{}, err
	}
	in := &dynamodb.PutItemInput{TableName: put.TableName, Item: put.Item, ConditionExpression: put.ConditionExpression,
		ExpressionAttributeNames: put.ExpressionAttributeNames, ExpressionAttributeValues: put.ExpressionAttributeValues,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld}
	_, err = patiently(ctx, func() (*dynamodb.PutItemOutput, error) { return e.client.PutItem(ctx, in, e.watch(nil)) })
	if refused := (*types.ConditionalCheckFailedException)(nil); errors.As(err, &refused) {
		if len(refused.Item) == 0 {
			return cas.Stored{}, cas.ErrStale
		}
		is, err := e.options.decode(refused.Item)
		if err != nil {
			return cas.Stored{}, err
		}
		return is, cas.ErrStale
	}
	if err != nil {
		return cas.Stored{}, explain(err)
	}
	return cas.Stored{Row: row, Version: version}, nil
}

// put returns the write of a row, and its new version.
func (e *engine) put(c cas.Change) (_ *types.Put, version string, err error) {
	version = rand.Text()
	it := e.options.encode(c.Is, version)
	if n := size(it); n > maxItem {
		kind := once.ErrInvalid
		if c.Is.Status == once.Done {
			kind = once.ErrOutcomeRefused
		}
		return nil, "", fmt.Errorf("%w: dynamostore: the item of the key has about %d bytes, and DynamoDB takes %d", kind, n, maxItem)
	}
	put := &types.Put{TableName: &e.options.Table, Item: it}
	put.ConditionExpression, put.ExpressionAttributeNames, put.ExpressionAttributeValues = e.unchanged(c.Was.Version)
	return put, version, nil
}

// unchanged returns the condition that an item has a version, or that there is
// none.
func (e *engine) unchanged(version string) (expression *string, names map[string]string, values item) {
	if version == "" {
		return aws.String("attribute_not_exists(#pk)"), map[string]string{"#pk": e.options.PartitionKey}, nil
	}
	return aws.String("#version = :over"), map[string]string{"#version": "version"}, item{":over": text(version)}
}

// LoadDoc returns a document.
func (e *engine) LoadDoc(ctx context.Context, at cas.DocName) (cas.Doc, error) {
	it, err := e.getItem(ctx, e.options.docKey(at.Name))
	if err != nil || len(it) == 0 {
		return cas.Doc{}, err
	}
	return e.decodeDoc(at.Name, it), nil
}

func (e *engine) decodeDoc(name string, it item) cas.Doc {
	d := &decoder{item: it}
	doc := cas.Doc{Text: d.bytes("bytes"), Version: d.text("version")}
	if it["text"] != nil {
		doc.Text = []byte(d.text("text"))
	}
	d.need("a version, and a text or bytes", doc.Version != "" && doc.Text != nil)
	if d.err != nil {
		damage := fmt.Errorf("%w: the item of %s in %s %w", once.ErrCorrupt, name, e.options.Table, d.err)
		return cas.Doc{Version: cmp.Or(doc.Version, "none"), Damage: damage}
	}
	return doc
}

// docWrite returns the write of a document.
func (e *engine) docWrite(c cas.DocChange) types.TransactWriteItem {
	expression, names, values := e.unchanged(c.Over)
	key := e.options.docKey(c.Name)
	if c.Is == nil {
		return types.TransactWriteItem{Delete: &types.Delete{TableName: &e.options.Table, Key: key, ConditionExpression: expression,
			ExpressionAttributeNames: names, ExpressionAttributeValues: values}}
	}
	key["version"] = text(rand.Text())
	if utf8.Valid(c.Is) {
		key["text"] = text(string(c.Is))
	} else {
		key["bytes"] = &types.AttributeValueMemberB{Value: c.Is}
	}
	if queue, is := queueOf(c.Name); is {
		key[e.options.Index] = text(e.options.inQueue(queue))
	}
	if c.Expires != 0 {
		key[e.options.Expiry] = expiry(c.Expires)
	}
	return types.TransactWriteItem{Put: &types.Put{TableName: &e.options.Table, Item: key, ConditionExpression: expression,
		ExpressionAttributeNames: names, ExpressionAttributeValues: values}}
}

// attempts tells how the attempts of a request ended.
type attempts struct {
	unanswered bool // one of them may have been applied, or may be on its way
}

// watch learns the time from the response to each attempt of a request.
func (e *engine) watch(a *attempts) func(*dynamodb.Options) {
	each := func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
		middleware.DeserializeOutput, middleware.Metadata, error) {

		sent := time.Now()
		out, metadata, err := next.HandleDeserialize(ctx, in)
		response, _ := out.RawResponse.(*smithyhttp.Response)
		answered := err == nil && response != nil && response.Response != nil
		if answered {
			if at, ok := servicedate.Of(response.Response, "x-amzn-RequestId"); ok {
				e.clock.Learn(sent, at, time.Second)
			}
		}
		if a != nil && !(answered && isRefusal(response.StatusCode)) {
			a.unanswered = true
		}
		return out, metadata, err
	}
	return func(o *dynamodb.Options) {
		o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
			return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("once:watch", each), middleware.After)
		})
	}
}

// isRefusal reports whether a response with this status says that the request
// was not applied.
func isRefusal(status int) bool {
	return status >= 400 && status < 500 && status != http.StatusRequestTimeout
}

// maxWait bounds how long a call waits for a service that throttles.
const maxWait = time.Minute

// patiently calls f again while the service refuses it for a reason that passes.
func patiently[Out any](ctx context.Context, f func() (Out, error)) (Out, error) {
	return patientlyIf(ctx, passes, f)
}

// patientlyIf calls f again while passes reports that the reason passes.
func patientlyIf[Out any](ctx context.Context, passes func(error) bool, f func() (Out, error)) (Out, error) {
	pause := backoff.Backoff{First: 20 * time.Millisecond, Limit: 2 * time.Second}
	for begin := time.Now(); ; {
		out, err := f()
		if !passes(err) || time.Since(begin) > maxWait || backoff.Sleep(ctx, pause.Next()) != nil {
			return out, err
		}
	}
}

// passes reports whether an error means that nothing was applied because of too
// many requests, or because of a transaction in flight on the item of a write.
func passes(err error) bool {
	if canceled := (*types.TransactionCanceledException)(nil); errors.As(err, &canceled) {
		return isThrottled(canceled)
	}
	conflict := (*types.TransactionConflictException)(nil)
	return errors.As(err, &conflict) || retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary
}

// explain names the errors of the contract.
func explain(err error) error {
	var api smithy.APIError
	switch {
	case !errors.As(err, &api):
		return err
	case api.ErrorCode() == "ValidationException" && strings.HasPrefix(api.ErrorMessage(), "Item size"):
		return fmt.Errorf("%w: dynamostore: %w", once.ErrOutcomeRefused, err)
	case api.ErrorCode() == "ValidationException":
		return fmt.Errorf("%w: dynamostore: %w", once.ErrInvalid, err)
	}
	return err
}
