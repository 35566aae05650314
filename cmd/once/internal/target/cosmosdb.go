package target

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/effectively-once/once/store/cosmosstore"
)

// Cosmos is the container of a store in Cosmos DB.
type Cosmos struct {
	Container *azcosmos.ContainerClient
	responses lastDate
	partition func() (string, error) // path of the partition key
}

// openCosmos opens a container. The password of the URL is a key of the account.
// Without it, Microsoft Entra ID decides.
func openCosmos(u *url.URL, o *Options) (*Target, error) {
	const form = "write cosmosdb://:${COSMOS_KEY}@account.documents.azure.com/database/container"
	database, container, ok := strings.Cut(strings.Trim(u.Path, "/"), "/")
	switch {
	case u.Host == "":
		return nil, refuse("it has no account: %s", form)
	case !ok || database == "" || container == "" || strings.Contains(container, "/"):
		return nil, refuse("it has no database and container: %s", form)
	}
	options := &cosmosstore.Options{Options: o.Options}
	q := u.Query()
	switch by := q.Get("partition_key"); by {
	case "":
	case "scope":
		options.Partition = cosmosstore.ByScope
	default:
		return nil, refuse("the parameter partition_key is %q: write scope if your programs use cosmosstore.ByScope, or omit it", by)
	}
	q.Del("partition_key")
	endpoint, err := endpointOf(u, q)
	if err != nil {
		return nil, err
	}
	c := new(Cosmos)
	with := &azcosmos.ClientOptions{}
	with.PerRetryPolicies = []policy.Policy{&c.responses}
	client, err := cosmosClient(u, endpoint, with)
	if err != nil {
		return nil, err
	}
	if c.Container, err = client.NewContainer(database, container); err != nil {
		return nil, refuse("%v", err)
	}
	c.partition = sync.OnceValues(func() (string, error) {
		is, err := c.Container.Read(context.Background(), nil)
		if err != nil {
			return "", err
		}
		return strings.TrimPrefix(is.ContainerProperties.PartitionKeyDefinition.Paths[0], "/"), nil
	})
	return &Target{Store: cosmosstore.New(c.Container, options), Engine: CosmosDB, Cosmos: c, now: c.now, byHand: c.byHand,
		close: func() error { client.Close(); return nil }}, nil
}

// endpointOf returns the endpoint of a service of Azure. insecure is for
// emulators.
func endpointOf(u *url.URL, q url.Values) (string, error) {
	scheme := "https"
	if q.Get("insecure") == "true" {
		scheme = "http"
	}
	q.Del("insecure")
	for name := range q {
		return "", refuse("the parameter %s is not for %s", name, engineOf(u.Scheme))
	}
	return (&url.URL{Scheme: scheme, Host: u.Host}).String(), nil
}

func cosmosClient(u *url.URL, endpoint string, with *azcosmos.ClientOptions) (*azcosmos.Client, error) {
	if key, ok := u.User.Password(); ok {
		credential, err := azcosmos.NewKeyCredential(key)
		if err != nil {
			return nil, refuse("its password is not a key of an account, which is base64")
		}
		return azcosmos.NewClientWithKey(endpoint, credential, with)
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return azcosmos.NewClient(endpoint, credential, with)
}

// now returns the time in a response, in the middle of its second.
func (c *Cosmos) now(ctx context.Context) (time.Time, error) {
	if _, err := c.Container.Read(ctx, nil); err != nil {
		return time.Time{}, err
	}
	return c.responses.time()
}

// byHand creates an item that is new, and replaces it if it has its entity tag.
func (c *Cosmos) byHand(ctx context.Context, key string, keep time.Duration) error {
	path, err := c.partition()
	if err != nil {
		return err
	}
	id := "once-bench-" + key
	item, err := json.Marshal(map[string]any{"id": id, path: id, "ttl": int(keep / time.Second), "body": "as long as a record with its outcome, or nearly"})
	if err != nil {
		return err
	}
	partition := azcosmos.NewPartitionKeyString(id)
	made, err := c.Container.CreateItem(ctx, partition, item, nil)
	if err != nil {
		return err
	}
	_, err = c.Container.ReplaceItem(ctx, partition, id, item, &azcosmos.ItemOptions{IfMatchEtag: &made.ETag})
	return err
}

// lastDate keeps the Date of the last response.
type lastDate struct{ unix atomic.Int64 }

// Do implements policy.Policy.
func (l *lastDate) Do(r *policy.Request) (*http.Response, error) {
	response, err := r.Next()
	if err == nil {
		if date, parsed := http.ParseTime(response.Header.Get("Date")); parsed == nil {
			l.unix.Store(date.Unix())
		}
	}
	return response, err
}

func (l *lastDate) time() (time.Time, error) {
	unix := l.unix.Load()
	if unix == 0 {
		return time.Time{}, errors.New("the response has no Date")
	}
	return time.Unix(unix, 0).Add(time.Second / 2), nil
}
