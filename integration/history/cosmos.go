package history

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/cosmosstore"
)

// cosmosPlace is a container of the imitation of this repository. The ID of a key
// is its partition key.
func cosmosPlace(t testing.TB) *place {
	server := fakecosmos.New()
	t.Cleanup(server.Close)
	dial := func(transport policy.Transporter) (*azcosmos.Client, error) {
		key, err := azcosmos.NewKeyCredential(fakecosmos.Key)
		if err != nil {
			return nil, err
		}
		return azcosmos.NewClientWithKey(server.URL, key, &azcosmos.ClientOptions{
			ClientOptions: azcore.ClientOptions{Transport: transport, Retry: policy.RetryOptions{MaxRetries: -1}}})
	}
	plain, err := dial(nil)
	proof.Must(t, err)
	t.Cleanup(plain.Close)
	_, err = plain.CreateDatabase(t.Context(), azcosmos.DatabaseProperties{ID: "shop"}, nil)
	proof.Must(t, err)
	database, err := plain.NewDatabase("shop")
	proof.Must(t, err)
	forever := int32(-1)
	_, err = database.CreateContainer(t.Context(), azcosmos.ContainerProperties{ID: "keys", DefaultTimeToLive: &forever,
		PartitionKeyDefinition: azcosmos.PartitionKeyDefinition{Paths: []string{"/" + cosmosKey}}}, nil)
	proof.Must(t, err)
	effects, err := plain.NewContainer("shop", "keys")
	proof.Must(t, err)
	elsewhere := newLedger()
	p := &place{collects: true, resolution: time.Second, brief: longLease, longest: longPause, beside: manyRounds, units: 3, open: func(claimFirst bool) (*process, error) {
		l := newLine(longPause)
		client, err := dial(l)
		if err != nil {
			return nil, err
		}
		container, err := client.NewContainer("shop", "keys")
		s := cosmosstore.New(container, &cosmosstore.Options{Partition: idOf, ClaimFirst: claimFirst})
		is := newProcess(once.TxStore[*cosmosstore.Tx](s), &dialect[*cosmosstore.Tx]{
			begin: func(context.Context) (*cosmosstore.Tx, error) { return s.Begin(), nil },
			write: func(_ context.Context, of *cosmosstore.Tx, k once.Key, value int64) error {
				of.CreateItem(cosmosEffect(k, value))
				return nil
			},
			commit:   func(ctx context.Context, of *cosmosstore.Tx) error { return of.Commit(ctx) },
			rollback: func(_ context.Context, of *cosmosstore.Tx) error { return of.Rollback() },
		}, apart{elsewhere, cosmosEffects{effects}})
		is.line, is.close = l, client.Close
		return is, err
	}}
	return p.withVeteran(t)
}

const cosmosKey = "unit"

func idOf(k once.Key) string { return k.ID }

func cosmosEffect(k once.Key, value int64) []byte {
	text, err := json.Marshal(map[string]any{"id": fmt.Sprintf("%x", name.Token()), cosmosKey: idOf(k), "name": nameOf(k), "value": value})
	if err != nil {
		panic(err) // a map of text and a number
	}
	return text
}

// cosmosEffects are items.
type cosmosEffects struct{ *azcosmos.ContainerClient }

func (e cosmosEffects) read(ctx context.Context, k once.Key) (n, value int64, err error) {
	pages := e.NewQueryItemsPager("SELECT * FROM c WHERE c.name = @name", azcosmos.NewPartitionKeyString(idOf(k)),
		&azcosmos.QueryOptions{QueryParameters: []azcosmos.QueryParameter{{Name: "@name", Value: nameOf(k)}}})
	for pages.More() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return 0, 0, err
		}
		for _, text := range page.Items {
			var is struct{ Value int64 }
			if err := json.Unmarshal(text, &is); err != nil {
				return 0, 0, err
			}
			n, value = n+1, max(value, is.Value)
		}
	}
	return n, value, nil
}
