package dynamostore_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/effectively-once/once/store/dynamostore"
)

// The printed table is the one that CreateTable makes.
func TestTemplateIsTheTable(t *testing.T) {
	w := newWorld(t)
	for _, o := range []*dynamostore.Options{nil, {Table: "mine", SortKey: "sk", Index: "open", Expiry: "until"}} {
		var is struct{ Properties dynamodb.CreateTableInput }
		if err := json.Unmarshal([]byte(dynamostore.Template(o)), &is); err != nil {
			t.Fatal(err)
		}
		if o != nil {
			must(t, dynamostore.New(dial(w.url), o).CreateTable(t.Context()))
		}
		made, err := w.client.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: is.Properties.TableName})
		must(t, err)
		want, got := made.Table, is.Properties
		text := func(v any) string {
			b, err := json.Marshal(v)
			must(t, err)
			return string(b)
		}
		if text(got.KeySchema) != text(want.KeySchema) || text(got.AttributeDefinitions) != text(want.AttributeDefinitions) ||
			text(got.GlobalSecondaryIndexes[0].KeySchema) != text(want.GlobalSecondaryIndexes[0].KeySchema) ||
			*got.GlobalSecondaryIndexes[0].IndexName != *want.GlobalSecondaryIndexes[0].IndexName {
			t.Errorf("the template is %s, and the table is %s", text(got), text(want))
		}
		if !slices.Contains([]string{"once", "mine"}, *want.TableName) {
			t.Errorf("the table is %s", *want.TableName)
		}
	}
}
