package main

import (
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/effectively-once/once/broker/servicebusbroker"
)

// onServiceBus uses the queues orders and shipments, which require sessions. The
// session of a message is its ordering key.
func onServiceBus(client *azservicebus.Client) post {
	b := servicebusbroker.New(client, &servicebusbroker.Options{Sessions: true})
	return post{orders: b.Queue("orders"), publisher: b.Publisher(), shipments: "shipments"}
}
