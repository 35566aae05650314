package target

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/effectively-once/once/store/dynamostore"
)

// Dynamo is the table of a store in DynamoDB.
type Dynamo struct {
	Client *dynamodb.Client
	Table  string
	Index  string // of open records
	Expiry string // the attribute of the time of deletion

	partitionKey, sortKey string
}

// openDynamo opens a table. Credentials and the region come from where the AWS
// command line finds them.
func openDynamo(ctx context.Context, u *url.URL, own own, o *Options) (*Target, error) {
	if u.User != nil || u.Port() != "" || u.Path != "" && u.Path != "/" {
		return nil, refuse("write dynamodb://table?region=eu-central-1: credentials come from the environment, as for the AWS command line")
	}
	if u.Host == "" {
		return nil, refuse("it has no table: write dynamodb://table?region=eu-central-1")
	}
	q := u.Query()
	d := &Dynamo{Table: u.Host, Index: cmp.Or(q.Get("index"), "once_open"), Expiry: cmp.Or(q.Get("expiry"), "expires"),
		partitionKey: cmp.Or(q.Get("partition_key"), "pk"), sortKey: q.Get("sort_key")}
	options := &dynamostore.Options{Options: o.Options, Table: d.Table, Prefix: own.prefix, Index: d.Index, Expiry: d.Expiry,
		PartitionKey: d.partitionKey, SortKey: d.sortKey}
	region, endpoint := q.Get("region"), q.Get("endpoint")
	for name := range q {
		switch name {
		case "index", "expiry", "partition_key", "sort_key", "region", "endpoint":
		default:
			return nil, refuse("the parameter %s is not for dynamodb", name)
		}
	}
	loaded, err := LoadAWS(ctx, region)
	if err != nil {
		return nil, err
	}
	d.Client = dynamodb.NewFromConfig(loaded, func(d *dynamodb.Options) {
		if endpoint != "" {
			d.BaseEndpoint = &endpoint
		}
	})
	return &Target{Store: dynamostore.New(d.Client, options), Engine: DynamoDB, Dynamo: d, now: d.now, byHand: d.byHand,
		close: func() error { return nil }}, nil
}

// now returns the time in a response, in the middle of its second.
func (d *Dynamo) now(ctx context.Context) (time.Time, error) {
	out, err := d.Client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &d.Table})
	if err != nil {
		return time.Time{}, err
	}
	now, ok := awsmiddleware.GetServerTime(out.ResultMetadata)
	if !ok {
		return now, errors.New("the response has no Date")
	}
	return now.Add(time.Second / 2), nil
}

// byHand writes an item that is new, and then over its version.
func (d *Dynamo) byHand(ctx context.Context, key string, keep time.Duration) error {
	item := map[string]types.AttributeValue{
		d.partitionKey: &types.AttributeValueMemberS{Value: "once-bench#" + key},
		"version":      &types.AttributeValueMemberS{Value: "1"},
		"body":         &types.AttributeValueMemberS{Value: "as long as a record with its outcome, or nearly"},
		d.Expiry:       &types.AttributeValueMemberN{Value: strconv.FormatInt(time.Now().Add(keep).Unix(), 10)},
	}
	if d.sortKey != "" {
		item[d.sortKey] = &types.AttributeValueMemberS{Value: "once-bench"}
	}
	_, err := d.Client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &d.Table, Item: item,
		ConditionExpression: aws.String("attribute_not_exists(" + name + ")"), ExpressionAttributeNames: map[string]string{name: d.partitionKey}})
	if err != nil {
		return err
	}
	_, err = d.Client.PutItem(ctx, &dynamodb.PutItemInput{TableName: &d.Table, Item: item,
		ConditionExpression: aws.String(name + " = :was"), ExpressionAttributeNames: map[string]string{name: "version"},
		ExpressionAttributeValues: map[string]types.AttributeValue{":was": item["version"]}})
	return err
}

// name stands for the name of an attribute in a condition.
const name = "#name"
