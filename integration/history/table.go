package history

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/tablestore"
)

// tablePlace is a table of Azurite. The ID of a key is its partition. A server
// that is busy tells an old time for a while.
func tablePlace(t testing.TB) *place {
	dsn, table := testenv.Azurite(t), fmt.Sprint("history", time.Now().UnixNano())
	dial := func(transport policy.Transporter) (*aztables.Client, error) {
		service, err := aztables.NewServiceClientFromConnectionString(dsn, &aztables.ClientOptions{
			ClientOptions: azcore.ClientOptions{Transport: transport}})
		if err != nil {
			return nil, err
		}
		return service.NewClient(table), nil
	}
	plain, err := dial(nil) // the account is random, so no other server accepts it
	proof.Must(t, err)
	proof.Must(t, tablestore.New(plain, nil).Migrate(t.Context()))
	t.Cleanup(func() {
		_, err := plain.Delete(context.WithoutCancel(t.Context()), nil)
		proof.Must(t, err)
	})
	elsewhere := newLedger()
	p := &place{collects: true, resolution: 1100 * time.Millisecond, brief: longLease, longest: longPause, beside: manyRounds, units: 3, open: func(claimFirst bool) (*process, error) {
		l := newLine(longPause)
		client, err := dial(l)
		if err != nil {
			return nil, err
		}
		s := tablestore.New(client, &tablestore.Options{Partition: idOf, ClaimFirst: claimFirst})
		is := newProcess(once.TxStore[*tablestore.Tx](s), &dialect[*tablestore.Tx]{
			begin: func(context.Context) (*tablestore.Tx, error) { return s.Begin(), nil },
			write: func(_ context.Context, of *tablestore.Tx, k once.Key, value int64) error {
				return of.Write(aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: tableEffect(k, value)})
			},
			commit:   func(ctx context.Context, of *tablestore.Tx) error { return of.Commit(ctx) },
			rollback: func(_ context.Context, of *tablestore.Tx) error { return of.Rollback() },
		}, apart{elsewhere, tableEffects{plain}})
		is.line = l
		return is, nil
	}}
	return p.withVeteran(t)
}

func tableEffect(k once.Key, value int64) []byte {
	text, err := json.Marshal(map[string]any{"PartitionKey": idOf(k), "RowKey": fmt.Sprintf("%x", name.Token()), "Name": nameOf(k), "Value": value})
	if err != nil {
		panic(err) // a map of text and a number
	}
	return text
}

// tableEffects are entities.
type tableEffects struct{ *aztables.Client }

func (e tableEffects) read(ctx context.Context, k once.Key) (n, value int64, err error) {
	filter := fmt.Sprintf("PartitionKey eq '%s' and Name eq '%s'", idOf(k), strings.ReplaceAll(nameOf(k), "'", "''"))
	for pages := e.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &filter}); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return 0, 0, err
		}
		for _, text := range page.Entities {
			var is struct{ Value int64 }
			if err := json.Unmarshal(text, &is); err != nil {
				return 0, 0, err
			}
			n, value = n+1, max(value, is.Value)
		}
	}
	return n, value, nil
}
