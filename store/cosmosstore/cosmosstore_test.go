package cosmosstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/cosmosstore"
	"github.com/effectively-once/once/store/storetest"
)

func TestMain(m *testing.M) { logtest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// account is a service with a container, for one test.
type account struct {
	*fakecosmos.Server
	t testing.TB
}

func newAccount(t testing.TB) *account { return newAccountOf(t, 4) }

// newAccountOf returns an account whose containers have so many partitions.
func newAccountOf(t testing.TB, partitions int) *account {
	t.Helper()
	a := &account{fakecosmos.New(), t}
	t.Cleanup(a.Close)
	a.SetPartitions(partitions)
	forever := int32(-1)
	a.create("keys", azcosmos.ContainerProperties{DefaultTimeToLive: &forever})
	return a
}

// create makes a container whose partition key is /customer, unless the
// properties have another.
func (a *account) create(id string, is azcosmos.ContainerProperties) *azcosmos.ContainerClient {
	a.t.Helper()
	client := a.client()
	_, err := client.CreateDatabase(a.t.Context(), azcosmos.DatabaseProperties{ID: "shop"}, nil)
	if code(err) != 409 {
		must(a.t, err)
	}
	database, err := client.NewDatabase("shop")
	must(a.t, err)
	if is.ID = id; len(is.PartitionKeyDefinition.Paths) == 0 {
		is.PartitionKeyDefinition.Paths = []string{"/customer"}
	}
	_, err = database.CreateContainer(a.t.Context(), is, nil)
	must(a.t, err)
	return a.container(id)
}

func (a *account) client() *azcosmos.Client {
	a.t.Helper()
	key, err := azcosmos.NewKeyCredential(fakecosmos.Key)
	must(a.t, err)
	client, err := azcosmos.NewClientWithKey(a.URL, key, nil)
	must(a.t, err)
	a.t.Cleanup(client.Close)
	return client
}

// container returns a client of its own, like that of another process.
func (a *account) container(id string) *azcosmos.ContainerClient {
	a.t.Helper()
	container, err := a.client().NewContainer("shop", id)
	must(a.t, err)
	return container
}

// store returns a store as another process has it. Everything has one partition
// key.
func (a *account) store() *cosmosstore.Store {
	return cosmosstore.New(a.container("keys"), &cosmosstore.Options{Partition: one})
}

func one(once.Key) string { return "c1" }

// effects returns how many items have a name.
func (a *account) effects(name string) (n int, err error) {
	pages := a.container("keys").NewQueryItemsPager("SELECT * FROM c WHERE c.name = @name", azcosmos.NewPartitionKeyString("c1"),
		&azcosmos.QueryOptions{QueryParameters: []azcosmos.QueryParameter{{Name: "@name", Value: name}}})
	for pages.More() {
		page, err := pages.NextPage(context.Background())
		if err != nil {
			return 0, err
		}
		n += len(page.Items)
	}
	return n, nil
}

// effect returns an item with a name.
func effect(called string) []byte {
	text, err := json.Marshal(map[string]string{"id": fmt.Sprintf("%x", name.Token()), "customer": "c1", "name": called})
	if err != nil {
		panic(err)
	}
	return text
}

func harness(a *account, claimFirst bool) storetest.TxHarness[*cosmosstore.Tx] {
	container := a.container("keys")
	begin := cosmosstore.New(container, &cosmosstore.Options{Partition: one})
	return storetest.TxHarness[*cosmosstore.Tx]{
		Open: func(testing.TB) once.TxStore[*cosmosstore.Tx] {
			return cosmosstore.New(container, &cosmosstore.Options{Partition: one, ClaimFirst: claimFirst})
		},
		Batched:     true,
		ClaimsFirst: claimFirst,
		Expires:     true,
		LearnsTime:  true,
		Slow:        true,
		MaxMessages: 40,
		MaxBody:     900 << 10,
		Damages:     a.damages(),
		Begin: func(context.Context) (*cosmosstore.Tx, error) {
			tx := begin.Begin()
			tx.CreateItem(effect("begun")) // messages need the partition key
			return tx, nil
		},
		Commit:   func(ctx context.Context, tx *cosmosstore.Tx) error { return tx.Commit(ctx) },
		Rollback: func(_ context.Context, tx *cosmosstore.Tx) error { return tx.Rollback() },
		Effect: func(_ context.Context, tx *cosmosstore.Tx, name string) error {
			tx.CreateItem(effect(name))
			return nil
		},
		Count: func(_ context.Context, name string) (int, error) { return a.effects(name) },
	}
}

// A query asks one partition after another, and everything of these tests is in
// one, so two show what more would.
func TestConformance(t *testing.T) { storetest.RunTx(t, harness(newAccountOf(t, 2), false)) }

func TestConformanceIfClaimsAreWrittenFirst(t *testing.T) {
	h := harness(newAccountOf(t, 2), true)
	h.NoOutbox = true
	storetest.RunTx(t, h)
}

// By default each record has a partition key of its own.
func TestConformanceWithoutPartitions(t *testing.T) {
	a := newAccount(t)
	storetest.Run(t, storetest.Harness{
		Open:       func(testing.TB) once.Store { return cosmosstore.New(a.container("keys"), nil) },
		Expires:    true,
		LearnsTime: true,
	})
}

// code returns the status of a response.
func code(err error) int {
	var refused *azcore.ResponseError
	if errors.As(err, &refused) {
		return refused.StatusCode
	}
	return 0
}
