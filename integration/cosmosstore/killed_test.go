//go:build linux

// Package cosmosstore tests the store in Cosmos DB with processes that are killed
// and stopped, while requests and replies are lost. The service is
// internal/fakecosmos.
package cosmosstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/integration/internal/fleet"
	"github.com/effectively-once/once/integration/internal/killproof"
	"github.com/effectively-once/once/integration/internal/proof"
	"github.com/effectively-once/once/internal/fakecosmos"
	"github.com/effectively-once/once/internal/logtest"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/store/cosmosstore"
)

func TestMain(m *testing.M) {
	if !fleet.IsProcess() {
		logtest.Main(m)
		return
	}
	fleet.Main(m, work)
}

// plan is what a process does.
type plan struct {
	URL     string
	IDs     int
	Seed    uint64
	Dies    bool // at random moments of its work
	Stalled bool // says when its first work has begun, and stops there until it is told

	Outbox *killproof.Plan // instead of all this
}

// office is where customers pay: a container with their accounts and the keys,
// and the ledger of another system.
type office struct {
	store    *cosmosstore.Store
	accounts *azcosmos.ContainerClient
	ledger   *azcosmos.ContainerClient
}

func open(url string, options *cosmosstore.Options) (*office, error) {
	key, err := azcosmos.NewKeyCredential(fakecosmos.Key)
	if err != nil {
		return nil, err
	}
	var o azcosmos.ClientOptions
	o.Retry = policy.RetryOptions{MaxRetries: -1}
	client, err := azcosmos.NewClientWithKey(url, key, &o)
	if err != nil {
		return nil, err
	}
	accounts, err := client.NewContainer("office", "accounts")
	if err != nil {
		return nil, err
	}
	ledger, err := client.NewContainer("office", "ledger")
	return &office{cosmosstore.New(accounts, options), accounts, ledger}, err
}

// create makes the containers.
func create(ctx context.Context, url string) error {
	key, err := azcosmos.NewKeyCredential(fakecosmos.Key)
	if err != nil {
		return err
	}
	client, err := azcosmos.NewClientWithKey(url, key, nil)
	if err != nil {
		return err
	}
	if _, err := client.CreateDatabase(ctx, azcosmos.DatabaseProperties{ID: "office"}, nil); err != nil {
		return err
	}
	database, err := client.NewDatabase("office")
	forever := int32(-1)
	for _, id := range []string{"accounts", "ledger"} {
		if err == nil {
			_, err = database.CreateContainer(ctx, azcosmos.ContainerProperties{ID: id, DefaultTimeToLive: &forever,
				PartitionKeyDefinition: azcosmos.PartitionKeyDefinition{Paths: []string{"/customer"}}}, nil)
		}
	}
	return err
}

func customer(i int) string { return fmt.Sprint("c", i%5) }

// entry is an item that counts a unit of work.
func entry(id string, i int) []byte {
	text, err := json.Marshal(map[string]string{"id": fmt.Sprintf("%x", name.Token()), "customer": customer(i), "order": id})
	if err != nil {
		panic(err)
	}
	return text
}

func entries(ctx context.Context, c *azcosmos.ContainerClient, id string, i int) (n int, err error) {
	pages := c.NewQueryItemsPager("SELECT * FROM c WHERE c.order = @order", azcosmos.NewPartitionKeyString(customer(i)),
		&azcosmos.QueryOptions{QueryParameters: []azcosmos.QueryParameter{{Name: "@order", Value: id}}})
	for pages.More() && err == nil {
		var page azcosmos.QueryItemsResponse
		page, err = pages.NextPage(ctx)
		n += len(page.Items)
	}
	return n, err
}

const lease = 1500 * time.Millisecond

// charge is work with an effect in another system, which can be asked.
func (o *office) charge() *once.Operation[string] {
	return &once.Operation[string]{Name: "charge", SettleTime: 300 * time.Millisecond, Policy: once.Policy{Lease: lease},
		Lookup: func(ctx context.Context, k once.Key) (string, bool, error) {
			var i int
			if _, err := fmt.Sscanf(k.ID, "%d", &i); err != nil {
				return "", false, err
			}
			n, err := entries(ctx, o.ledger, k.ID, i)
			return "charged " + k.ID, n > 0, err
		}}
}

var pay = &once.Operation[string]{Name: "pay", Policy: once.Policy{Lease: lease}, OnUnknown: once.Park}

// work is that of a process: it does what nobody has done, in any order.
func work(ctx context.Context, p plan, told <-chan struct{}) error {
	if p.Outbox != nil {
		return killproof.Work(ctx, *p.Outbox, openPlace)
	}
	o, err := open(p.URL, &cosmosstore.Options{Partition: cosmosstore.ByScope, ClaimFirst: p.Seed%2 == 0})
	if err != nil {
		return err
	}
	chance := rand.New(rand.NewPCG(p.Seed, 1))
	moment := func() {
		if p.Dies && chance.IntN(20) == 0 {
			fleet.DieNow()
		}
	}
	stall := func(until <-chan struct{}) {
		if p.Stalled {
			fmt.Println("begun")
			select {
			case <-until:
			case <-ctx.Done():
			}
		}
	}
	charge := o.charge()
	for ctx.Err() == nil {
		for _, i := range chance.Perm(p.IDs) {
			id := fmt.Sprint(i)
			call, cancel := context.WithTimeout(ctx, 10*time.Second)
			_, _ = once.DoTx(call, o.store, pay.For(id).In(customer(i)), func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
				moment()
				stall(told)
				tx.CreateItem(entry(id, i))
				return "paid " + id, nil
			})
			_, err := once.Do(call, o.store, charge.For(id).In(customer(i)), func(ctx context.Context, _ once.Key) (string, error) {
				moment()
				stall(ctx.Done()) // until the lease is lost
				if err := ctx.Err(); err != nil {
					return "", once.NotDone(err)
				}
				_, err := o.ledger.CreateItem(ctx, azcosmos.NewPartitionKeyString(customer(i)), entry(id, i), nil)
				if err != nil {
					return "", err
				}
				moment()
				return "charged " + id, nil
			})
			cancel()
			if p.Stalled {
				fmt.Println("ended", errors.Is(err, once.ErrLeaseLost))
				<-ctx.Done()
			}
		}
	}
	return nil
}

// Processes are killed while they work, and requests and replies are lost: each
// unit of work is done once.
func TestKilledProcessesDoEachWorkOnce(t *testing.T) {
	const ids, size = 30, 3
	s := fakecosmos.New()
	defer s.Close()
	ctx := proof.Soon(t)
	proof.Must(t, create(ctx, s.URL))
	seed := proof.Seed(t)
	chance, mu := rand.New(rand.NewPCG(seed, 2)), sync.Mutex{}
	faults := map[fakecosmos.Fault]int{}
	s.SetFault(func(r fakecosmos.Request) fakecosmos.Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.Kind == "Query" || chance.IntN(30) > 0 {
			return fakecosmos.None
		}
		fault := []fakecosmos.Fault{fakecosmos.LoseRequest, fakecosmos.LoseReply, fakecosmos.Unavailable, fakecosmos.Refused}[chance.IntN(4)]
		faults[fault]++
		return fault
	})
	f := fleet.Keep(t, size, func(n int) any { return plan{URL: s.URL, IDs: ids, Seed: seed + uint64(n), Dies: true} })
	o, err := open(s.URL, &cosmosstore.Options{Partition: cosmosstore.ByScope})
	proof.Must(t, err)
	charge := o.charge()
	pause := time.NewTicker(150 * time.Millisecond)
	defer pause.Stop()
	isDone := func(k once.Key) bool {
		rec, err := o.store.Get(ctx, k)
		return err == nil && rec.Status == once.Done
	}
	for done := false; !done; {
		<-pause.C
		f.Kill(rand.IntN(size))
		done = true
		for i := range ids {
			id := fmt.Sprint(i)
			done = done && isDone(pay.For(id).In(customer(i)).Key()) && isDone(charge.For(id).In(customer(i)).Key())
		}
		proof.Must(t, ctx.Err())
	}
	f.Stop()
	s.SetFault(nil)
	for i := range ids {
		id := fmt.Sprint(i)
		rows, err := entries(ctx, o.accounts, id, i)
		proof.Must(t, err)
		effects, err := entries(ctx, o.ledger, id, i)
		proof.Must(t, err)
		if rows != 1 || effects != 1 {
			t.Errorf("%s=%d: %s was paid %d times, and charged %d times", proof.SeedVar, seed, id, rows, effects)
		}
	}
	t.Logf("%d processes were killed, and there were faults: %v", f.Deaths(), faults)
	if f.Deaths() < 10 || len(faults) < 4 {
		t.Error("too little went wrong to show anything")
	}
}

// A process stalls in the middle of its work until another has taken it over. Then
// it learns that it is late.
func TestAStalledProcessLearnsThatItIsLate(t *testing.T) {
	s := fakecosmos.New()
	defer s.Close()
	ctx := proof.Soon(t)
	proof.Must(t, create(ctx, s.URL))
	o, err := open(s.URL, &cosmosstore.Options{Partition: cosmosstore.ByScope})
	proof.Must(t, err)
	p := fleet.Start(t, plan{URL: s.URL, IDs: 1, Stalled: true})
	p.Hear(t, "begun") // DoTx
	got, err := once.DoTx(ctx, o.store, pay.For("0").In(customer(0)), func(_ context.Context, tx *cosmosstore.Tx) (string, error) {
		tx.CreateItem(entry("0", 0))
		return "paid first", nil
	})
	if err != nil || got != "paid first" {
		t.Fatalf("DoTx beside a stalled one returned %q, %v", got, err)
	}
	p.Tell(t)
	p.Hear(t, "begun") // Do, after DoTx has met the record
	p.Stop(t)
	charge := o.charge()
	got, err = "", once.ErrInProgress
	for err != nil && ctx.Err() == nil {
		got, err = once.Do(ctx, o.store, charge.For("0").In(customer(0)), func(ctx context.Context, _ once.Key) (string, error) {
			_, err := o.ledger.CreateItem(ctx, azcosmos.NewPartitionKeyString(customer(0)), entry("0", 0), nil)
			return "charged by the other", err
		})
	}
	if err != nil || got != "charged by the other" {
		t.Fatalf("Do returned %q, %v", got, err)
	}
	p.Signal(syscall.SIGCONT)
	p.Hear(t, "ended true")
	rows, err := entries(ctx, o.accounts, "0", 0)
	proof.Must(t, err)
	effects, err := entries(ctx, o.ledger, "0", 0)
	proof.Must(t, err)
	if rows != 1 || effects != 1 {
		t.Errorf("it was paid %d times, and charged %d times", rows, effects)
	}
}
