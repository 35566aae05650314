package dynamostore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// CreateTable makes the table of the store with its index and a stream of keys,
// billed by request, waits until it can be used, and switches on deletion by time. It needs
// dynamodb:CreateTable, DescribeTable and UpdateTimeToLive. A table that exists is
// an error: [Template] shows what it needs.
func (s *Store) CreateTable(ctx context.Context) error {
	e := s.engine
	if e.invalid != nil {
		return e.invalid
	}
	o := &e.options
	in := &dynamodb.CreateTableInput{TableName: &o.Table, BillingMode: types.BillingModePayPerRequest}
	for _, name := range o.keyAttributes() {
		in.AttributeDefinitions = append(in.AttributeDefinitions,
			types.AttributeDefinition{AttributeName: &name, AttributeType: types.ScalarAttributeTypeS})
	}
	in.KeySchema = keySchema(o.PartitionKey, o.SortKey)
	in.GlobalSecondaryIndexes = []types.GlobalSecondaryIndex{{IndexName: &o.Index, KeySchema: keySchema(o.Index, o.PartitionKey),
		Projection: &types.Projection{ProjectionType: types.ProjectionTypeAll}}}
	in.StreamSpecification = &types.StreamSpecification{StreamEnabled: aws.Bool(true), StreamViewType: types.StreamViewTypeKeysOnly}
	if _, err := e.client.CreateTable(ctx, in); err != nil {
		return fmt.Errorf("dynamostore: create the table %s: %w", o.Table, err)
	}
	wait := dynamodb.NewTableExistsWaiter(e.client, func(w *dynamodb.TableExistsWaiterOptions) { w.MinDelay = time.Second })
	err := wait.Wait(ctx, &dynamodb.DescribeTableInput{TableName: &o.Table}, 10*time.Minute)
	if err == nil {
		_, err = e.client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{TableName: &o.Table,
			TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &o.Expiry, Enabled: aws.Bool(true)}})
	}
	if err != nil {
		return fmt.Errorf("dynamostore: prepare the table %s, which exists now: %w", o.Table, err)
	}
	return nil
}

// keyAttributes are those that keys of the table and of the index are made of.
func (o *Options) keyAttributes() []string {
	names := []string{o.PartitionKey, o.Index}
	if o.SortKey != "" {
		names = append(names, o.SortKey)
	}
	return names
}

func keySchema(partition, sort string) []types.KeySchemaElement {
	keys := []types.KeySchemaElement{{AttributeName: &partition, KeyType: types.KeyTypeHash}}
	if sort != "" {
		keys = append(keys, types.KeySchemaElement{AttributeName: &sort, KeyType: types.KeyTypeRange})
	}
	return keys
}

// Template returns the table of a store with these options as a resource of
// CloudFormation, in JSON. A table of the caller's own needs its
// GlobalSecondaryIndexes and its TimeToLiveSpecification, and the
// StreamSpecification if relays shall hear of messages at once.
func Template(o *Options) string {
	with := cmp.Or(o, new(Options)).ready()
	type object map[string]any
	var definitions []object
	for _, name := range with.keyAttributes() {
		definitions = append(definitions, object{"AttributeName": name, "AttributeType": "S"})
	}
	keys := func(partition, sort string) (parts []object) {
		for _, k := range keySchema(partition, sort) {
			parts = append(parts, object{"AttributeName": *k.AttributeName, "KeyType": k.KeyType})
		}
		return parts
	}
	text, _ := json.MarshalIndent(object{ // strings can be encoded
		"Type": "AWS::DynamoDB::Table",
		"Properties": object{
			"TableName":            with.Table,
			"BillingMode":          types.BillingModePayPerRequest,
			"AttributeDefinitions": definitions,
			"KeySchema":            keys(with.PartitionKey, with.SortKey),
			"GlobalSecondaryIndexes": []object{{
				"IndexName":  with.Index,
				"KeySchema":  keys(with.Index, with.PartitionKey),
				"Projection": object{"ProjectionType": types.ProjectionTypeAll},
			}},
			"StreamSpecification":     object{"StreamViewType": types.StreamViewTypeKeysOnly},
			"TimeToLiveSpecification": object{"AttributeName": with.Expiry, "Enabled": true},
		},
	}, "", "  ")
	return string(text)
}
