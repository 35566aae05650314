package main

import (
	"strings"

	"github.com/effectively-once/once/broker/kafkabroker"
	"github.com/twmb/franz-go/pkg/kgo"
)

// onKafka uses the topics orders and shipments, and the group stock.
func onKafka(addresses string) post {
	b := kafkabroker.New(&kafkabroker.Options{Client: []kgo.Opt{kgo.SeedBrokers(strings.Split(addresses, ",")...)}})
	return post{orders: b.Topics("stock", "orders"), publisher: b.Publisher(), shipments: "shipments"}
}
