package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once/store/dynamostore"
)

// paymentsTable has the partition key customer and the sort key id.
const paymentsTable = "payments"

// onDynamoDB keeps payments in a table beside that of the keys: a transaction of
// DynamoDB may write to several.
func onDynamoDB(client *dynamodb.Client) *bank[*dynamostore.Tx] {
	key := func(customer, id string) map[string]types.AttributeValue {
		return map[string]types.AttributeValue{
			"customer": &types.AttributeValueMemberS{Value: customer},
			"id":       &types.AttributeValueMemberS{Value: id},
		}
	}
	return &bank[*dynamostore.Tx]{
		store: dynamostore.New(client, nil),
		add: func(tx *dynamostore.Tx, customer string, p Payment) error {
			item := key(customer, p.ID)
			item["cents"] = &types.AttributeValueMemberN{Value: strconv.Itoa(p.Cents)}
			return tx.Put(types.Put{TableName: aws.String(paymentsTable), Item: item,
				ConditionExpression: aws.String("attribute_not_exists(id)")})
		},
		find: func(ctx context.Context, customer, id string) (Payment, bool, error) {
			out, err := client.GetItem(ctx, &dynamodb.GetItemInput{TableName: aws.String(paymentsTable), Key: key(customer, id)})
			if err != nil || out.Item == nil {
				return Payment{}, false, err
			}
			cents, ok := out.Item["cents"].(*types.AttributeValueMemberN)
			if !ok {
				return Payment{}, false, fmt.Errorf("payment %s has no cents", id)
			}
			n, err := strconv.Atoi(cents.Value)
			return Payment{ID: id, Cents: n}, true, err
		},
	}
}
