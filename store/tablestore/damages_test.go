package tablestore_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
)

// damages are those of a table.
func damages(c *aztables.Client) (all []storetest.Damage) {
	// change changes the first entity whose RowKey begins like this and whose text has a part.
	change := func(ctx context.Context, begin, part string, to func(map[string]any)) error {
		filter := fmt.Sprintf("RowKey ge '%s' and RowKey lt '%s~'", begin, begin)
		for pages := c.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &filter}); pages.More(); {
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
				if strings.Contains(string(body), part) {
					to(entity)
					_, err = c.UpsertEntity(ctx, mustMarshal(entity), &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeReplace})
					return err
				}
			}
		}
		return fmt.Errorf("there is no entity %s with %s", begin, part)
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
			return change(ctx, fmt.Sprintf("once-key-%x", k.UUID()), "", to)
		}})
	}
	for name, to := range map[string]func(map[string]any){
		"no JSON": func(e map[string]any) { e["Body00"], e["Size"] = base64.StdEncoding.EncodeToString([]byte("{")), "1" },
		"no body": without("Body00"),
		"no size": without("Size"),
	} {
		all = append(all, storetest.Damage{
			Name: name,
			Registry: func(ctx context.Context) (undo func(context.Context) error, err error) {
				var was []byte
				err = change(ctx, "once-doc-consumers", "", func(e map[string]any) { was = mustMarshal(e); to(e) })
				return func(ctx context.Context) error {
					_, err := c.UpsertEntity(ctx, was, &aztables.UpsertEntityOptions{UpdateMode: aztables.UpdateModeReplace})
					return err
				}, err
			},
			Outgoing: func(ctx context.Context, id string) error {
				return change(ctx, "once-doc-out", fmt.Sprintf("%q", id), to)
			},
			Shelved: func(ctx context.Context, consumer, id string) error {
				return change(ctx, fmt.Sprintf("once-doc-shelf.%x.", consumer), fmt.Sprintf(`"ID":%q`, id), to)
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
