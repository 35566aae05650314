//go:build linux

package tablestore

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/killproof"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/tablestore"
)

func TestMain(m *testing.M) { killproof.Main(m, openPlace) }

// byLine gives each line a partition.
func byLine(k once.Key) string { return killproof.LineOf(k.ID) }

// tally is the entity that counts the entries of a list. Each entry is an entity
// with its number.
type tally struct {
	PartitionKey, RowKey string
	Entries              int
}

type entry struct{ PartitionKey, RowKey, Entry string }

func tallyOf(list string) tally {
	line, kind, _ := strings.Cut(list, "/")
	return tally{PartitionKey: line, RowKey: "tally " + kind}
}

// openPlace opens the table of a name on Azurite.
func openPlace(name string) (*killproof.Place[*tablestore.Tx], error) {
	service, err := aztables.NewServiceClientFromConnectionString(os.Getenv(testenv.AzuriteVar), nil)
	if err != nil {
		return nil, err
	}
	c := service.NewClient(name)
	return &killproof.Place[*tablestore.Tx]{
		Store: tablestore.New(c, &tablestore.Options{Partition: byLine}),
		Note: func(ctx context.Context, tx *tablestore.Tx, list, text string) error {
			is := tallyOf(list)
			got, err := c.GetEntity(ctx, is.PartitionKey, is.RowKey, nil)
			if err == nil {
				err = json.Unmarshal(got.Value, &is)
			}
			if err != nil {
				return err
			}
			is.Entries++
			count, err := json.Marshal(is)
			if err != nil {
				return err
			}
			one, err := json.Marshal(entry{is.PartitionKey, fmt.Sprintf("%s %06d", is.RowKey, is.Entries), text})
			if err != nil {
				return err
			}
			tag := azcore.ETag(got.ETag)
			return tx.Write(aztables.TransactionAction{ActionType: aztables.TransactionTypeUpdateReplace, Entity: count, IfMatch: &tag},
				aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: one})
		},
		Noted: func(ctx context.Context, list string) (all []string, err error) {
			is := tallyOf(list)
			filter := fmt.Sprintf("PartitionKey eq '%s' and RowKey gt '%s ' and RowKey lt '%s~'", is.PartitionKey, is.RowKey, is.RowKey)
			for pages := c.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &filter}); pages.More(); {
				page, err := pages.NextPage(ctx)
				if err != nil {
					return nil, err
				}
				for _, text := range page.Entities {
					var e entry
					if err := json.Unmarshal(text, &e); err != nil {
						return nil, err
					}
					all = append(all, e.Entry)
				}
			}
			return all, nil
		},
	}, nil
}

func TestKilledProcessesLoseNoMessage(t *testing.T) {
	killproof.Run(t, killproof.Setting[*tablestore.Tx]{
		Make: func(t *testing.T) string {
			s := openShop(t, byLine)
			for _, list := range killproof.Lists() {
				text, err := json.Marshal(tallyOf(list))
				proof.Must(t, err)
				_, err = s.client.AddEntity(t.Context(), text, nil)
				proof.Must(t, err)
			}
			return s.name
		},
		Open:  openPlace,
		Slow:  true,
		Lease: 4 * time.Second,
		Pause: 200 * time.Millisecond,
	})
}
