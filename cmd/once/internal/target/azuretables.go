package target

import (
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/data/aztables"

	"github.com/effectively-once/once/store/tablestore"
)

// Azure is the table of a store in Azure Table storage.
type Azure struct {
	Table     *aztables.Client
	responses lastDate
}

// openAzureTables opens a table. The user and the password of the URL are the
// account and its key. Without a password, Microsoft Entra ID decides.
func openAzureTables(u *url.URL, o *Options) (*Target, error) {
	const form = "write azuretables://account:${TABLES_KEY}@account.table.core.windows.net/table"
	path, table := "", strings.Trim(u.Path, "/")
	if at := strings.LastIndex(table, "/"); at >= 0 { // emulators have the account there
		path, table = "/"+table[:at], table[at+1:]
	}
	if u.Host == "" || table == "" {
		return nil, refuse("it has no account, or no table: %s", form)
	}
	endpoint, err := endpointOf(u, u.Query())
	if err != nil {
		return nil, err
	}
	a := new(Azure)
	with := &aztables.ClientOptions{}
	with.PerRetryPolicies = []policy.Policy{&a.responses}
	service, err := azureService(u, endpoint+path, with)
	if err != nil {
		return nil, err
	}
	a.Table = service.NewClient(table)
	return &Target{Store: tablestore.New(a.Table, &tablestore.Options{Options: o.Options}), Engine: AzureTables, Azure: a, now: a.now, byHand: a.byHand,
		close: func() error { return nil }}, nil
}

func azureService(u *url.URL, endpoint string, with *aztables.ClientOptions) (*aztables.ServiceClient, error) {
	if key, ok := u.User.Password(); ok {
		account := cmp.Or(u.User.Username(), strings.Split(u.Hostname(), ".")[0])
		credential, err := aztables.NewSharedKeyCredential(account, key)
		if err != nil {
			return nil, refuse("its password is not a key of an account, which is base64")
		}
		return aztables.NewServiceClientWithSharedKey(endpoint, credential, with)
	}
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return nil, err
	}
	return aztables.NewServiceClient(endpoint, credential, with)
}

// now returns the time in a response, in the middle of its second.
func (a *Azure) now(ctx context.Context) (time.Time, error) {
	one := int32(1)
	if _, err := a.Table.NewListEntitiesPager(&aztables.ListEntitiesOptions{Top: &one}).NextPage(ctx); err != nil {
		return time.Time{}, err
	}
	return a.responses.time()
}

// byHand inserts an entity that is new, and deletes it if it has its entity tag:
// Table storage itself would never delete it.
func (a *Azure) byHand(ctx context.Context, key string, _ time.Duration) error {
	entity, err := json.Marshal(map[string]any{"PartitionKey": key, "RowKey": "once-bench", "Body": "as long as a record with its outcome, or nearly"})
	if err != nil {
		return err
	}
	made, err := a.Table.AddEntity(ctx, entity, nil)
	if err != nil {
		return err
	}
	_, err = a.Table.DeleteEntity(ctx, key, "once-bench", &aztables.DeleteEntityOptions{IfMatch: &made.ETag})
	return err
}
