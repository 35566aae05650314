package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/store/cosmosstore"
)

// cosmosDelay is the time that a request takes at the fake of Cosmos DB, which
// itself takes none: about what a write takes there.
const cosmosDelay = 5 * time.Millisecond

// cosmosStages hold the contests of the store in Cosmos DB. They count requests
// more than anything else, because the service is a fake.
func cosmosStages() (stages []stage) {
	for _, contest := range []struct {
		name     string
		variants func(*cosmosBench) []variant
	}{
		{"a duplicate", (*cosmosBench).duplicates},
		{"claim and complete", (*cosmosBench).works},
		{"guarded transaction", (*cosmosBench).transactions},
	} {
		stages = append(stages, stage{name: contest.name + ", fake of Cosmos DB", loads: workers(1, 8),
			open: func(ctx context.Context, _ *bench) (*arena, error) { return openCosmos(ctx, contest.variants) }})
	}
	return stages
}

type cosmosBench struct {
	container *azcosmos.ContainerClient
	store     *cosmosstore.Store
	again     *cosmosstore.Store // for duplicates
}

const cosmosCustomer = "c1"

func openCosmos(ctx context.Context, variants func(*cosmosBench) []variant) (*arena, error) {
	service := fakecosmos.New()
	c, err := newCosmosBench(ctx, service.URL)
	if err == nil {
		err = seedDuplicates(ctx, func(ctx context.Context, id string) error {
			_, err := c.container.CreateItem(ctx, cosmosKey(), cosmosItem(id), nil)
			return errors.Join(err, c.do(ctx, c.store, id), c.doTx(ctx, c.store, cosmosPay, id))
		})
	}
	if err != nil {
		service.Close()
		return nil, err
	}
	service.SetDelay(cosmosDelay)
	return &arena{close: service.Close, contest: func(load) contest {
		return contest{unit: "piece of work", variants: variants(c)}
	}}, nil
}

func newCosmosBench(ctx context.Context, url string) (*cosmosBench, error) {
	key, err := azcosmos.NewKeyCredential(fakecosmos.Key)
	if err != nil {
		return nil, err
	}
	client, err := azcosmos.NewClientWithKey(url, key, nil)
	if err != nil {
		return nil, err
	}
	if _, err := client.CreateDatabase(ctx, azcosmos.DatabaseProperties{ID: "bench"}, nil); err != nil {
		return nil, err
	}
	database, err := client.NewDatabase("bench")
	if err != nil {
		return nil, err
	}
	forever := int32(-1)
	_, err = database.CreateContainer(ctx, azcosmos.ContainerProperties{ID: "answers", DefaultTimeToLive: &forever,
		PartitionKeyDefinition: azcosmos.PartitionKeyDefinition{Paths: []string{"/customer"}}}, nil)
	if err != nil {
		return nil, err
	}
	container, err := database.NewContainer("answers")
	open := func() *cosmosstore.Store {
		return cosmosstore.New(container, &cosmosstore.Options{Partition: cosmosstore.ByScope})
	}
	return &cosmosBench{container, open(), open()}, err
}

var cosmosPay = &once.Operation[string]{Name: "pay", OnUnknown: once.Resend}

func (c *cosmosBench) duplicates() []variant {
	read := func(ctx context.Context) error {
		batch := c.container.NewTransactionalBatch(cosmosKey())
		batch.ReadItem(someDuplicate(), nil)
		return c.send(ctx, batch)
	}
	return []variant{
		repeated("ReadItem", func(ctx context.Context) error {
			_, err := c.container.ReadItem(ctx, cosmosKey(), someDuplicate(), nil)
			return err
		}),
		repeated("a batch with one read", read),
		repeated("Do, duplicate", func(ctx context.Context) error { return c.do(ctx, c.again, someDuplicate()) }),
		repeated("DoTx, duplicate", func(ctx context.Context) error { return c.doTx(ctx, c.again, cosmosPay, someDuplicate()) }),
	}
}

func (c *cosmosBench) works() []variant {
	return []variant{
		repeated("CreateItem and ReplaceItem", func(ctx context.Context) error {
			id := newID()
			created, err := c.container.CreateItem(ctx, cosmosKey(), cosmosItem(id), nil)
			if err != nil {
				return err
			}
			_, err = c.container.ReplaceItem(ctx, cosmosKey(), id, cosmosItem(id), &azcosmos.ItemOptions{IfMatchEtag: &created.ETag})
			return err
		}),
		repeated("Do", func(ctx context.Context) error { return c.do(ctx, c.store, newID()) }),
	}
}

func (c *cosmosBench) transactions() []variant {
	quick := *cosmosPay
	quick.Speculative = true
	first := cosmosstore.New(c.container, &cosmosstore.Options{Partition: cosmosstore.ByScope, ClaimFirst: true})
	return []variant{
		repeated("a batch with two items", func(ctx context.Context) error {
			batch, id := c.container.NewTransactionalBatch(cosmosKey()), newID()
			batch.CreateItem(cosmosItem("key "+id), nil)
			batch.CreateItem(cosmosItem(id), nil)
			return c.send(ctx, batch)
		}),
		repeated("DoTx, Speculative", func(ctx context.Context) error { return c.doTx(ctx, c.store, &quick, newID()) }),
		repeated("DoTx", func(ctx context.Context) error { return c.doTx(ctx, c.store, cosmosPay, newID()) }),
		repeated("DoTx, ClaimFirst", func(ctx context.Context) error { return c.doTx(ctx, first, cosmosPay, newID()) }),
	}
}

func (c *cosmosBench) send(ctx context.Context, batch azcosmos.TransactionalBatch) error {
	got, err := c.container.ExecuteTransactionalBatch(ctx, batch, &azcosmos.TransactionalBatchOptions{EnableContentResponseOnWrite: true})
	if err == nil && !got.Success {
		err = fmt.Errorf("the batch failed: %v", got.OperationResults)
	}
	return err
}

func (c *cosmosBench) do(ctx context.Context, s *cosmosstore.Store, id string) error {
	_, err := once.Do(ctx, s, cosmosPay.For(id).In(cosmosCustomer), func(context.Context, once.Key) (string, error) { return answer300, nil })
	return err
}

func (c *cosmosBench) doTx(ctx context.Context, s *cosmosstore.Store, op *once.Operation[string], id string) error {
	_, err := once.DoTx(ctx, s, op.For("tx "+id).In(cosmosCustomer), func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
		tx.CreateItem(cosmosItem("tx " + id))
		return answer300, nil
	})
	return err
}

func cosmosKey() azcosmos.PartitionKey { return azcosmos.NewPartitionKeyString(cosmosCustomer) }

func cosmosItem(id string) []byte {
	text, err := json.Marshal(map[string]string{"id": id, "customer": cosmosCustomer, "answer": answer300})
	if err != nil {
		panic(err)
	}
	return text
}
