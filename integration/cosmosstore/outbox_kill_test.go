//go:build linux

package cosmosstore

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/killproof"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store/cosmosstore"
)

// list is an item that transactions append to.
type list struct {
	ID       string   `json:"id"`
	Customer string   `json:"customer"`
	Noted    []string `json:"noted"`
}

// openPlace opens the store at a URL for a proof with killed processes. A list is
// an item in the partition of its line.
func openPlace(url string) (*killproof.Place[*cosmosstore.Tx], error) {
	o, err := open(url, &cosmosstore.Options{Partition: func(k once.Key) string { return killproof.LineOf(k.ID) }})
	if err != nil {
		return nil, err
	}
	read := func(ctx context.Context, name string) (is list, tag *azcosmos.TransactionalBatchItemOptions, err error) {
		got, err := o.accounts.ReadItem(ctx, azcosmos.NewPartitionKeyString(killproof.LineOf(name)), idOf(name), nil)
		if err != nil {
			return is, nil, err
		}
		return is, &azcosmos.TransactionalBatchItemOptions{IfMatchETag: &got.ETag}, json.Unmarshal(got.Value, &is)
	}
	return &killproof.Place[*cosmosstore.Tx]{
		Store: o.store,
		Note: func(ctx context.Context, tx *cosmosstore.Tx, name, entry string) error {
			is, tag, err := read(ctx, name)
			if err != nil {
				return err
			}
			is.Noted = append(is.Noted, entry)
			text, err := json.Marshal(is)
			tx.ReplaceItem(is.ID, text, tag)
			return err
		},
		Noted: func(ctx context.Context, name string) ([]string, error) {
			is, _, err := read(ctx, name)
			return is.Noted, err
		},
	}, nil
}

// idOf returns the id of a list's item, which has no slash.
func idOf(name string) string { return "list-" + name[len(killproof.LineOf(name))+1:] }

// Processes are killed, and requests and replies are lost.
func TestKilledProcessesLoseNoMessage(t *testing.T) {
	var s *fakecosmos.Server
	killproof.Run(t, killproof.Setting[*cosmosstore.Tx]{
		Make: func(t *testing.T) string {
			s = fakecosmos.New()
			t.Cleanup(s.Close)
			proof.Must(t, create(t.Context(), s.URL))
			o, err := open(s.URL, nil)
			proof.Must(t, err)
			for _, name := range killproof.Lists() {
				line := killproof.LineOf(name)
				text, err := json.Marshal(list{ID: idOf(name), Customer: line, Noted: []string{}})
				proof.Must(t, err)
				_, err = o.accounts.CreateItem(t.Context(), azcosmos.NewPartitionKeyString(line), text, nil)
				proof.Must(t, err)
			}
			chance, mu := rand.New(rand.NewPCG(proof.Seed(t), 4)), sync.Mutex{}
			s.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
				mu.Lock()
				defer mu.Unlock()
				rate := 60
				if r.Kind == "Query" { // a look of a relay takes dozens of them
					rate = 1000
				}
				if chance.IntN(rate) > 0 {
					return fakecosmos.None
				}
				faults := []fakecosmos.Fault{fakecosmos.LoseRequest, fakecosmos.LoseReply, fakecosmos.Unavailable, fakecosmos.Refused}
				return faults[chance.IntN(len(faults))]
			})
			return s.URL
		},
		Open:  openPlace,
		Lease: 3 * time.Second, // a look of a relay is slow, because it is dozens of queries
		Pause: 150 * time.Millisecond,
		Wrap:  func(p killproof.Plan) any { return plan{Outbox: &p} },
		Calm:  func(*testing.T) { s.SetFault(nil) },
	})
}
