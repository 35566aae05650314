package tablestore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/storetest"
	"github.com/effectively-once/once/store/tablestore"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// table returns a table of its own, through a client with these policies.
func table(t testing.TB, policies ...policy.Policy) *aztables.Client {
	t.Helper()
	name := fmt.Sprintf("once%d", time.Now().UnixNano())
	c := dial(t, name, policies...)
	must(t, tablestore.New(c, nil).Migrate(context.Background()))
	t.Cleanup(func() {
		_, err := dial(t, name).Delete(context.Background(), nil)
		must(t, err)
	})
	return c
}

// dial returns a client of a table, after it has asked whose server this is.
func dial(t testing.TB, table string, policies ...policy.Policy) *aztables.Client {
	t.Helper()
	dsn := testenv.Azurite(t)
	service, err := aztables.NewServiceClientFromConnectionString(dsn, nil)
	must(t, err)
	var raw *http.Response
	_, err = service.NewListTablesPager(nil).NextPage(policy.WithCaptureResponse(context.Background(), &raw))
	must(t, err)
	body, err := runtime.Payload(raw)
	must(t, err)
	var answer struct {
		Metadata string `json:"odata.metadata"`
	}
	must(t, json.Unmarshal(body, &answer))
	testenv.CheckAzurite(t, answer.Metadata)

	o := &aztables.ClientOptions{}
	o.PerRetryPolicies = policies
	service, err = aztables.NewServiceClientFromConnectionString(dsn, o)
	must(t, err)
	c := service.NewClient(table)
	clientsMu.Lock()
	defer clientsMu.Unlock()
	clients[c] = table
	return c
}

// clients has the table of each client.
var (
	clientsMu sync.Mutex
	clients   = make(map[*aztables.Client]string)
)

func nameOf(c *aztables.Client) string {
	clientsMu.Lock()
	defer clientsMu.Unlock()
	return clients[c]
}

func TestConformance(t *testing.T) {
	c := table(t)
	storetest.Run(t, storetest.Harness{
		Open:       func(t testing.TB) once.Store { return tablestore.New(c, nil) },
		ListsOpen:  true,
		LearnsTime: true,
	})
}

func txHarness(c *aztables.Client, o tablestore.Options) storetest.TxHarness[*tablestore.Tx] {
	o.Partition = func(once.Key) string { return "all" }
	s := tablestore.New(c, &o)
	var rows atomic.Int64
	return storetest.TxHarness[*tablestore.Tx]{
		Open:        func(testing.TB) once.TxStore[*tablestore.Tx] { o := o; return tablestore.New(c, &o) },
		ListsOpen:   true,
		LearnsTime:  true,
		Batched:     true,
		Slow:        true,
		ClaimsFirst: o.ClaimFirst,
		MaxMessages: 40, // with the documents of their ordering keys
		MaxBody:     590 << 10,
		Damages:     damages(c),
		Begin: func(context.Context) (*tablestore.Tx, error) { // with a partition, which messages need
			tx := s.Begin()
			begun := effect("all", "begun", "begun")
			begun.ActionType = aztables.TransactionTypeInsertReplace
			return tx, tx.Write(begun)
		},
		Commit:   func(ctx context.Context, tx *tablestore.Tx) error { return tx.Commit(ctx) },
		Rollback: func(_ context.Context, tx *tablestore.Tx) error { return tx.Rollback() },
		Effect: func(_ context.Context, tx *tablestore.Tx, name string) error {
			return tx.Write(effect("all", fmt.Sprint("effect ", rows.Add(1)), name))
		},
		Count: func(ctx context.Context, name string) (int, error) { return count(ctx, c, name) },
	}
}

func effect(partition, row, name string) aztables.TransactionAction {
	text, err := json.Marshal(map[string]string{"PartitionKey": partition, "RowKey": row, "Name": name})
	if err != nil {
		panic(err)
	}
	return aztables.TransactionAction{ActionType: aztables.TransactionTypeAdd, Entity: text}
}

func count(ctx context.Context, c *aztables.Client, name string) (n int, err error) {
	filter := fmt.Sprintf("Name eq '%s'", strings.ReplaceAll(name, "'", "''"))
	for pages := c.NewListEntitiesPager(&aztables.ListEntitiesOptions{Filter: &filter}); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return n, err
		}
		n += len(page.Entities)
	}
	return n, nil
}

func TestConformanceOfTransactions(t *testing.T) {
	storetest.RunTx(t, txHarness(table(t), tablestore.Options{}))
}

func TestConformanceIfClaimsAreWrittenFirst(t *testing.T) {
	h := txHarness(table(t), tablestore.Options{ClaimFirst: true})
	h.NoOutbox = true
	storetest.RunTx(t, h)
}
