package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once/store/cosmosstore"
)

// paymentItem is a payment in a container.
type paymentItem struct {
	Payment
	Customer string `json:"customer"`
}

// onCosmosDB keeps payments in the container of the keys, because a transaction
// of Cosmos DB is on one partition key: that of the customer, who is also the
// scope of the keys.
func onCosmosDB(container *azcosmos.ContainerClient) *bank[*cosmosstore.Tx] {
	return &bank[*cosmosstore.Tx]{
		store: cosmosstore.New(container, &cosmosstore.Options{Partition: cosmosstore.ByScope}),
		add: func(tx *cosmosstore.Tx, customer string, p Payment) error {
			item, err := json.Marshal(paymentItem{p, customer})
			if err != nil {
				return err
			}
			tx.CreateItem(item)
			return nil
		},
		find: func(ctx context.Context, customer, id string) (Payment, bool, error) {
			var item paymentItem
			found, err := container.ReadItem(ctx, azcosmos.NewPartitionKeyString(customer), id, nil)
			var refused *azcore.ResponseError
			if errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound {
				return item.Payment, false, nil
			}
			if err == nil {
				err = json.Unmarshal(found.Value, &item)
			}
			return item.Payment, err == nil, err
		},
	}
}
