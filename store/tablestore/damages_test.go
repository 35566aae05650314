package tablestore_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
)

// damages are those of a table.
func damages(c *aztables.Client) (all []storetest.Damage) {
	change := func(ctx context.Context, is func(row, text string) bool, to func(map[string]any)) error {
		for pages := c.NewListEntitiesPager(nil); pages.More(); {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return err
			}
			for _, text := range page.Entities {
				var entity map[string]any
				if err := json.Unmarshal(text, &entity); err != nil {
					return err
				}
				encoded, _ := entity["Body00"].(string)
				body, _ := base64.StdEncoding.DecodeString(encoded)
				if row, _ := entity["RowKey"].(string); is(row, string(body)) {
					to(entity)
					_, err = c.UpsertEntity(ctx, mustMarshal(entity), &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeReplace})
					return err
				}
			}
		}
		return errors.New("there is no such entity")
	}
	without := func(name string) func(map[string]any) {
		return func(e map[string]any) { delete(e, name); delete(e, name+"@odata.type") }
	}
	for name, to := range map[string]func(map[string]any){
		"no attempt":           without("Attempt"),
		"no time":              without("Updated"),
		"a text for a number":  func(e map[string]any) { e["Attempt"], e["Attempt@odata.type"] = "1", "Edm.String" },
		"a status that is new": func(e map[string]any) { e["Status"] = "ended" },
		"the parts of another": func(e map[string]any) { e["ID"] = "other" },
		"a format to come":     func(e map[string]any) { e["Format"] = "3" },
	} {
		all = append(all, storetest.Damage{Name: name, Record: func(ctx context.Context, k once.Key) error {
			return change(ctx, func(row, _ string) bool { return row == fmt.Sprintf("once-key-%x", k.UUID()) }, to)
		}})
	}
	for name, to := range map[string]func(map[string]any){
		"no JSON": func(e map[string]any) { e["Body00"], e["Size"] = base64.StdEncoding.EncodeToString([]byte("{")), "1" },
		"no body": without("Body00"),
		"no size": without("Size"),
	} {
		all = append(all, storetest.Damage{
			Name: name,
			Outgoing: func(ctx context.Context, id string) error {
				return change(ctx, func(row, text string) bool {
					return strings.HasPrefix(row, "once-doc-out") && strings.Contains(text, fmt.Sprintf("%q", id))
				}, to)
			},
			Shelved: func(ctx context.Context, consumer, id string) error {
				return change(ctx, func(row, text string) bool {
					return strings.HasPrefix(row, fmt.Sprintf("once-doc-shelf.%x.", consumer)) && strings.Contains(text, fmt.Sprintf(`"ID":%q`, id))
				}, to)
			},
		})
	}
	return all
}

func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
