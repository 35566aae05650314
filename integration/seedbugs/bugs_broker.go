package seedbugs

// brokerBugs are mistakes in the names and the kinds of things that adapters take.
var brokerBugs = []Bug{
	{
		Name: "rabbit-cause-is-the-ordering-key", Why: "the cause of a message is lost, or orders messages that have no order",
		File: "broker/rabbitbroker/message.go",
		Old:  `keyHeader    = broker.OrderingKeyField`,
		New:  `keyHeader    = broker.KeyHeader`,
		Test: Test{"./integration/brokers", "^TestTheCauseAndTheOrderTravel$/^rabbitmq$"},
	},
	{
		Name: "servicebus-cause-is-the-ordering-key", Why: "a message overtakes a parked one of its ordering key",
		File: "broker/servicebusbroker/message.go",
		Old:  `keyProperty     = broker.OrderingKeyField`,
		New:  `keyProperty     = broker.KeyHeader`,
		Test: Test{"./integration/brokers", "^TestTheCauseAndTheOrderTravel$/^servicebus$"},
	},
	{
		Name: "servicebus-takes-a-cause-for-an-earlier-key", Why: "the cause of a message is lost if its ordering key is the same",
		File: "broker/servicebusbroker/message.go",
		Old:  `!= m.OrderingKey || caused {`,
		New:  `!= m.OrderingKey || caused && false {`,
		Test: Test{"./integration/brokers", "^TestServiceBusSessionsConformance$/^message$/^library$"},
	},
	{
		Name: "eventhubs-cause-is-the-ordering-key", Why: "the cause of a message is lost, or orders messages that have no order",
		File: "broker/eventhubsbroker/message.go",
		Old:  `propertyKey  = broker.OrderingKeyField`,
		New:  `propertyKey  = broker.KeyHeader`,
		Test: Test{"./integration/brokers", "^TestTheCauseAndTheOrderTravel$/^eventhubs$"},
	},
	{
		Name: "rabbit-forgets-earlier-keys", Why: "messages that an earlier build has published lose their order",
		File: "broker/rabbitbroker/message.go",
		Old:  `} else if key, earlier := d.Headers[broker.KeyHeader]; earlier {`,
		New:  `} else if key, earlier := d.Headers[broker.KeyHeader]; earlier && false {`,
		Test: Test{"./broker/rabbitbroker", "^TestAMessageOfAnEarlierBuildKeepsItsOrderingKey$"},
	},
	{
		Name: "nats-dead-letter-keeps-an-old-reason", Why: "a dead letter tells why it was rejected another time",
		File: "broker/natsbroker/message.go",
		Old:  `maps.DeleteFunc(h, func(spelled string, _ []string) bool { return strings.EqualFold(spelled, name) })`,
		New:  `name = textproto.CanonicalMIMEHeaderKey(name)`,
		Test: Test{"./broker/natsbroker", "^TestADeadLetterHasItsOwnReason$"},
	},
	{
		Name: "sqs-dead-letter-keeps-an-old-reason", Why: "a dead letter that came through SNS tells why it was rejected another time",
		File: "broker/sqsbroker/message.go",
		Old:  `for name, value := range outside {`,
		New:  `for name, value := range map[string]string{} {`,
		Test: Test{"./broker/sqsbroker", "^TestConformanceThroughTopics$/^fifo_false,_raw_false$"},
	},
	{
		Name: "inbox-believes-shelf-headers-of-producers", Why: "a message comes back from the shelf under another ID, and is handled again",
		File: "inbox/shelf.go",
		Old:  `*value == by && !foreign {`,
		New:  `*value == by {`,
		Test: Test{"./inbox", "^TestHeadersOfTheShelfDoNotRenameMessages$"},
	},
}
