package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
)

type item = map[string]types.AttributeValue

// damages are those of a table.
func damages(c *dynamodb.Client, table string) (all []storetest.Damage) {
	change := func(ctx context.Context, is func(pk, text string) bool, to func(item)) error {
		for pages := dynamodb.NewScanPaginator(c, &dynamodb.ScanInput{TableName: &table}); pages.HasMorePages(); {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return err
			}
			for _, it := range page.Items {
				pk, _ := it["pk"].(*types.AttributeValueMemberS)
				text, _ := it["text"].(*types.AttributeValueMemberS)
				if text == nil {
					text = &types.AttributeValueMemberS{}
				}
				if pk != nil && is(pk.Value, text.Value) {
					to(it)
					_, err := c.PutItem(ctx, &dynamodb.PutItemInput{TableName: &table, Item: it})
					return err
				}
			}
		}
		return errors.New("there is no such item")
	}
	for name, to := range map[string]func(item){
		"no attempt":           func(it item) { delete(it, "attempt") },
		"a text for a number":  func(it item) { it["attempt"] = &types.AttributeValueMemberS{Value: "1"} },
		"a number for a text":  func(it item) { it["status"] = &types.AttributeValueMemberN{Value: "1"} },
		"a time that is none":  func(it item) { it["updated"] = &types.AttributeValueMemberS{Value: "yesterday"} },
		"the parts of another": func(it item) { it["key_id"] = &types.AttributeValueMemberS{Value: "other"} },
		"a format to come":     func(it item) { it["format"] = &types.AttributeValueMemberN{Value: "3"} },
	} {
		all = append(all, storetest.Damage{Name: name, Record: func(ctx context.Context, k once.Key) error {
			id := fmt.Sprintf("%x", k.UUID())
			return change(ctx, func(pk, _ string) bool { return strings.HasSuffix(pk, id) }, to)
		}})
	}
	for name, to := range map[string]func(item){
		"no JSON":           func(it item) { it["text"] = &types.AttributeValueMemberS{Value: "{"} },
		"no text":           func(it item) { delete(it, "text") },
		"a number for text": func(it item) { it["text"] = &types.AttributeValueMemberN{Value: "1"} },
	} {
		all = append(all, storetest.Damage{
			Name: name,
			Outgoing: func(ctx context.Context, id string) error {
				return change(ctx, func(pk, text string) bool {
					return strings.Contains(pk, "doc:out/") && strings.Contains(text, fmt.Sprintf("%q", id))
				}, to)
			},
			Shelved: func(ctx context.Context, consumer, id string) error {
				return change(ctx, func(pk, text string) bool {
					return strings.Contains(pk, fmt.Sprintf("doc:shelf/%x/", consumer)) && strings.Contains(text, fmt.Sprintf(`"ID":%q`, id))
				}, to)
			},
		})
	}
	return all
}
