package dynamostore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
)

type item = map[string]types.AttributeValue

// damages are those of a table with the default prefix. Of a large table, they read
// what they damage, because moto takes long to scan it.
func damages(c *dynamodb.Client, table string) (all []storetest.Damage) {
	get := func(ctx context.Context, pk string) (item, error) {
		out, err := c.GetItem(ctx, &dynamodb.GetItemInput{TableName: &table, Key: item{"pk": &types.AttributeValueMemberS{Value: pk}}})
		if err == nil && len(out.Item) == 0 {
			err = fmt.Errorf("there is no item %s", pk)
		}
		if err != nil {
			return nil, err
		}
		return out.Item, nil
	}
	change := func(ctx context.Context, pk string, to func(item)) error {
		it, err := get(ctx, pk)
		if err != nil {
			return err
		}
		to(it)
		_, err = c.PutItem(ctx, &dynamodb.PutItemInput{TableName: &table, Item: it})
		return err
	}
	outgoing := func(ctx context.Context, id string, to func(item)) error {
		for pages := dynamodb.NewScanPaginator(c, &dynamodb.ScanInput{TableName: &table}); pages.HasMorePages(); {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return err
			}
			for _, it := range page.Items {
				pk, _ := it["pk"].(*types.AttributeValueMemberS)
				text, _ := it["text"].(*types.AttributeValueMemberS)
				if pk != nil && text != nil && strings.Contains(pk.Value, "doc:out/") && strings.Contains(text.Value, fmt.Sprintf("%q", id)) {
					return change(ctx, pk.Value, to)
				}
			}
		}
		return fmt.Errorf("there is no message %q", id)
	}
	shelved := func(ctx context.Context, consumer, id string, to func(item)) error {
		pk := fmt.Sprintf("once#doc:shelf/%x", consumer)
		it, err := get(ctx, pk)
		if err != nil {
			return err
		}
		var lines []struct {
			Seq int64
			ID  string
		}
		text, _ := it["text"].(*types.AttributeValueMemberS)
		if text == nil {
			return fmt.Errorf("%s has no text", pk)
		}
		if err := json.Unmarshal([]byte(text.Value), &lines); err != nil {
			return err
		}
		for _, line := range lines {
			if line.ID == id {
				return change(ctx, fmt.Sprintf("%s/%d", pk, line.Seq), to)
			}
		}
		return fmt.Errorf("%s has no message %q", pk, id)
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
			return change(ctx, fmt.Sprintf("once#%x", k.UUID()), to)
		}})
	}
	for name, to := range map[string]func(item){
		"no JSON":           func(it item) { it["text"] = &types.AttributeValueMemberS{Value: "{"} },
		"no text":           func(it item) { delete(it, "text") },
		"a number for text": func(it item) { it["text"] = &types.AttributeValueMemberN{Value: "1"} },
	} {
		undoable := func(ctx context.Context, pk string) (func(context.Context) error, error) {
			was, err := get(ctx, pk)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				_, err := c.PutItem(ctx, &dynamodb.PutItemInput{TableName: &table, Item: was})
				return err
			}, change(ctx, pk, to)
		}
		all = append(all, storetest.Damage{
			Name: name,
			Registry: func(ctx context.Context) (func(context.Context) error, error) {
				return undoable(ctx, "once#doc:consumers")
			},
			Position: func(ctx context.Context, consumer, partition string) error {
				return change(ctx, fmt.Sprintf("once#doc:position/%x/%x", consumer, partition), to)
			},
			Partitions: func(ctx context.Context, consumer string) (func(context.Context) error, error) {
				return undoable(ctx, fmt.Sprintf("once#doc:partitions/%x", consumer))
			},
			Outgoing: func(ctx context.Context, id string) error { return outgoing(ctx, id, to) },
			Shelved:  func(ctx context.Context, consumer, id string) error { return shelved(ctx, consumer, id, to) },
		})
	}
	return all
}
