package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/tablestore"
)

// tableDelay is the time that a request waits before it is sent to Azurite, which
// is as near as can be: about what the service takes for a write.
const tableDelay = 4 * time.Millisecond

// tableStages hold the contests of the store in Azure Tables, on Azurite, which
// the servers tool starts when it is asked for.
func tableStages() (stages []stage) {
	for _, contest := range []struct {
		name     string
		variants func(*tableBench) []variant
	}{
		{"a duplicate", (*tableBench).duplicates},
		{"claim and complete", (*tableBench).works},
		{"guarded transaction", (*tableBench).transactions},
	} {
		stages = append(stages, stage{name: contest.name + ", Azurite 4 ms away", loads: workers(1, 8),
			open: func(ctx context.Context, _ *bench) (*arena, error) { return openTables(ctx, contest.variants) }})
	}
	return stages
}

type tableBench struct {
	client *aztables.Client
	spread *tablestore.Store // over the default partitions
	beside *tablestore.Store // in the partition of the rows
}

// delayed delays each request.
type delayed struct{}

func (delayed) Do(req *policy.Request) (*http.Response, error) {
	time.Sleep(tableDelay)
	return req.Next()
}

// tablePartition is that of a row and its key.
func tablePartition(id string) string { return "p" + id[len(id)-1:] }

func openTables(ctx context.Context, variants func(*tableBench) []variant) (*arena, error) {
	dsn := os.Getenv(testenv.AzuriteVar)
	if dsn == "" {
		return nil, errNoServer
	}
	o := &aztables.ClientOptions{}
	o.PerCallPolicies = []policy.Policy{delayed{}}
	service, err := aztables.NewServiceClientFromConnectionString(dsn, o)
	if err != nil {
		return nil, err
	}
	b := &tableBench{client: service.NewClient(fmt.Sprint("bench", time.Now().UnixNano()))}
	b.spread = tablestore.New(b.client, nil)
	b.beside = tablestore.New(b.client, &tablestore.Options{Partition: func(k once.Key) string { return tablePartition(k.ID) }})
	if err := b.spread.Migrate(ctx); err != nil { // the account has a random key, so this is no other server
		return nil, err
	}
	drop := func() { _, _ = b.client.Delete(context.WithoutCancel(ctx), nil) }
	err = seedDuplicates(ctx, func(ctx context.Context, id string) error {
		_, err := b.client.AddEntity(ctx, tableRow(id), nil)
		return errors.Join(err, b.do(ctx, b.spread, id), b.doTx(ctx, b.beside, tablePay, "tx "+id))
	})
	if err != nil {
		drop()
		return nil, err
	}
	return &arena{close: drop, contest: func(load) contest {
		return contest{unit: "piece of work", variants: variants(b)}
	}}, nil
}

var tablePay = &once.Operation[string]{Name: "pay", OnUnknown: once.Resend}

func (b *tableBench) duplicates() []variant {
	return []variant{
		repeated("GetEntity", func(ctx context.Context) error {
			id := someDuplicate()
			_, err := b.client.GetEntity(ctx, tablePartition(id), id, nil)
			return err
		}),
		repeated("Do, duplicate", func(ctx context.Context) error { return b.do(ctx, b.spread, someDuplicate()) }),
		repeated("DoTx, duplicate", func(ctx context.Context) error { return b.doTx(ctx, b.beside, tablePay, "tx "+someDuplicate()) }),
	}
}

func (b *tableBench) works() []variant {
	return []variant{
		repeated("insert and conditional replace", func(ctx context.Context) error {
			row := tableRow(newID())
			is, err := b.client.AddEntity(ctx, row, nil)
			if err == nil {
				_, err = b.client.UpdateEntity(ctx, row, &aztables.UpdateEntityOptions{IfMatch: &is.ETag, UpdateMode: aztables.UpdateModeReplace})
			}
			return err
		}),
		repeated("two transactions of two entities", func(ctx context.Context) error {
			id := newID()
			row, index := tableRow(id), tableRow("index of "+id)
			_, err := b.client.SubmitTransaction(ctx, []aztables.TransactionAction{
				{ActionType: aztables.TransactionTypeAdd, Entity: row}, {ActionType: aztables.TransactionTypeInsertReplace, Entity: index}}, nil)
			if err == nil {
				_, err = b.client.SubmitTransaction(ctx, []aztables.TransactionAction{
					{ActionType: aztables.TransactionTypeUpdateReplace, Entity: row, IfMatch: new(azcore.ETag("*"))},
					{ActionType: aztables.TransactionTypeDelete, Entity: index}}, nil)
			}
			return err
		}),
		repeated("Do", func(ctx context.Context) error { return b.do(ctx, b.spread, newID()) }),
		repeated("Do, with Partition", func(ctx context.Context) error { return b.do(ctx, b.beside, newID()) }),
	}
}

func (b *tableBench) transactions() []variant {
	quick := *tablePay
	quick.Speculative = true
	first := tablestore.New(b.client, &tablestore.Options{ClaimFirst: true, Partition: func(k once.Key) string { return tablePartition(k.ID) }})
	return []variant{
		repeated("transaction of a row and a key", func(ctx context.Context) error {
			id := newID()
			_, err := b.client.SubmitTransaction(ctx, []aztables.TransactionAction{
				{ActionType: aztables.TransactionTypeAdd, Entity: tableRow("key of " + id)},
				{ActionType: aztables.TransactionTypeAdd, Entity: tableRow(id)}}, nil)
			return err
		}),
		repeated("DoTx, Speculative", func(ctx context.Context) error { return b.doTx(ctx, b.beside, &quick, newID()) }),
		repeated("DoTx", func(ctx context.Context) error { return b.doTx(ctx, b.beside, tablePay, newID()) }),
		repeated("DoTx, ClaimFirst", func(ctx context.Context) error { return b.doTx(ctx, first, tablePay, newID()) }),
	}
}

func (b *tableBench) do(ctx context.Context, s *tablestore.Store, id string) error {
	_, err := once.Do(ctx, s, tablePay.For(id), func(context.Context, once.Key) (string, error) { return answer300, nil })
	return err
}

func (b *tableBench) doTx(ctx context.Context, s *tablestore.Store, op *once.Operation[string], id string) error {
	_, err := once.DoTx(ctx, s, op.For(id), func(_ context.Context, tx *tablestore.Tx) (string, error) {
		return answer300, tx.Write(aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: tableRow(id)})
	})
	return err
}

func tableRow(id string) []byte {
	text, err := json.Marshal(map[string]string{"PartitionKey": tablePartition(id), "RowKey": id, "Answer": answer300})
	if err != nil {
		panic(err) // a map of strings
	}
	return text
}
