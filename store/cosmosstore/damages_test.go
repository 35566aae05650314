package cosmosstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
)

// damages are those of the container.
func (a *account) damages() (all []storetest.Damage) {
	container := a.container("keys")
	change := func(ctx context.Context, is func(id, text string) bool, to func(item, of map[string]any)) error {
		for pages := container.NewQueryItemsPager("SELECT * FROM c", azcosmos.NewPartitionKey(), nil); pages.More(); {
			page, err := pages.NextPage(ctx)
			if err != nil {
				return err
			}
			for _, text := range page.Items {
				var item map[string]any
				if err := json.Unmarshal(text, &item); err != nil {
					return err
				}
				body, _ := item["onceBody"].(map[string]any)
				id, _ := item["id"].(string)
				of, _ := item["once"].(map[string]any)
				if of == nil || !is(id, fmt.Sprint(body["text"])) {
					continue
				}
				to(item, of)
				text, err := json.Marshal(item)
				if err != nil {
					return err
				}
				_, err = container.UpsertItem(ctx, azcosmos.NewPartitionKeyString(fmt.Sprint(item["customer"])), text, nil)
				return err
			}
		}
		return errors.New("there is no such item")
	}
	for name, to := range map[string]func(item, of map[string]any){
		"no attempt":           func(_, of map[string]any) { delete(of, "attempt") },
		"a text for a number":  func(_, of map[string]any) { of["attempt"] = "1" },
		"a time that is none":  func(_, of map[string]any) { of["updated"] = "yesterday" },
		"the parts of another": func(_, of map[string]any) { of["key"] = "other" },
		"a format to come":     func(_, of map[string]any) { of["format"] = 3 },
	} {
		all = append(all, storetest.Damage{Name: name, Record: func(ctx context.Context, k once.Key) error {
			return change(ctx, func(id, _ string) bool { return id == fmt.Sprintf("once-%x", k.UUID()) }, to)
		}})
	}
	for name, to := range map[string]func(item, of map[string]any){
		"no JSON":   func(item, _ map[string]any) { item["onceBody"] = map[string]any{"text": "{"} },
		"no body":   func(item, _ map[string]any) { delete(item, "onceBody") },
		"a number":  func(item, _ map[string]any) { item["onceBody"] = 7 },
		"no name":   func(_, of map[string]any) { delete(of, "doc") },
		"a bad one": func(_, of map[string]any) { of["doc"] = 7 },
	} {
		undoable := func(ctx context.Context, doc string) (undo func(context.Context) error, err error) {
			var was []byte
			var place azcosmos.PartitionKey
			err = change(ctx, func(id, _ string) bool { return id == "once-doc-"+doc }, func(item, of map[string]any) {
				was, _ = json.Marshal(item)
				place = azcosmos.NewPartitionKeyString(fmt.Sprint(item["customer"]))
				to(item, of)
			})
			return func(ctx context.Context) error {
				_, err := container.UpsertItem(ctx, place, was, nil)
				return err
			}, err
		}
		all = append(all, storetest.Damage{
			Name:     name,
			Registry: func(ctx context.Context) (func(context.Context) error, error) { return undoable(ctx, "consumers") },
			Position: func(ctx context.Context, consumer, partition string) error {
				_, err := undoable(ctx, fmt.Sprintf("position.%x.%x", consumer, partition))
				return err
			},
			Partitions: func(ctx context.Context, consumer string) (func(context.Context) error, error) {
				return undoable(ctx, fmt.Sprintf("partitions.%x", consumer))
			},
			Outgoing: func(ctx context.Context, id string) error {
				return change(ctx, func(name, text string) bool {
					return strings.HasPrefix(name, "once-doc-out.") && strings.Contains(text, fmt.Sprintf("%q", id))
				}, to)
			},
			Shelved: func(ctx context.Context, consumer, id string) error {
				return change(ctx, func(name, text string) bool {
					return strings.HasPrefix(name, fmt.Sprintf("once-doc-shelf.%x.", consumer)) && strings.Contains(text, fmt.Sprintf(`"ID":%q`, id))
				}, to)
			},
		})
	}
	return all
}
