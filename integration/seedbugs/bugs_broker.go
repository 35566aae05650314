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
		New: `for name, value := range outside {
		if name != "" {
			break
		}`,
		Test: Test{"./broker/sqsbroker", "^TestConformanceThroughTopics$/^fifo_false,_raw_false$"},
	},
	{
		Name: "inbox-believes-shelf-headers-of-producers", Why: "a message comes back from the shelf under another ID, and is handled again",
		File: "inbox/shelf.go",
		Old:  `*value == by && !foreign {`,
		New:  `*value == by && (!foreign || foreign) {`,
		Test: Test{"./inbox", "^TestHeadersOfTheShelfDoNotRenameMessages$"},
	},
	{
		Name: "kafka-reads-no-control-records", Why: "the lag of a transactional topic never ends, and retention stops its consumers",
		File: "broker/kafkabroker/internal/group/group.go",
		Old:  `kgo.KeepControlRecords(), // what was read past them is settled`,
		New:  ``,
		Test: Test{"./integration/brokers", "^TestKafkaSettlesControlRecordsAndAbortedMessages$/^committed$/^kfake$"},
	},
	{
		Name: "kafka-delivers-control-records", Why: "a consumer gets messages that nobody has published",
		File: "broker/kafkabroker/internal/group/partition.go",
		Old:  `if r.Attrs.IsControl() {`,
		New:  `if false {`,
		Test: Test{"./integration/brokers", "^TestKafkaSettlesControlRecordsAndAbortedMessages$/./^kfake$"},
	},
	{
		Name: "kafka-forgets-what-was-empty", Why: "a position before deleted control records stops its consumer for good",
		File: "broker/kafkabroker/internal/group/group.go",
		Old:  `p.Start(m.Offset, m.Gap, nil)`,
		New:  `p.Start(m.Offset, 0, nil)`,
		Test: Test{"./integration/brokers", "^TestKafkaPositionsSurviveDeletedControlRecords$/^committed,_all$/^kfake$"},
	},
	{
		Name: "kafka-passes-over-deleted-messages", Why: "messages that retention has deleted are lost in silence",
		File: "broker/kafkabroker/settle.go",
		Old:  `case s.isEmpty(p, next, start): //`,
		New:  `case s.isEmpty(p, next, start) || true: //`,
		Test: Test{"./integration/brokers", "^TestKafkaSeekKnowsWhatIsLost$/^kfake$"},
	},
	{
		Name: "rabbit-takes-a-stream", Why: "messages are skipped in silence",
		File: "broker/rabbitbroker/kind.go",
		Old:  `	if taken {`,
		New:  `	if taken && false {`,
		Test: Test{"./integration/brokers", "^TestRabbitRefusesQueuesThatLoseMessages$"},
	},
	{
		Name: "rabbit-takes-an-auto-delete-queue", Why: "a restart of the last consumer deletes the queue",
		File: "broker/rabbitbroker/kind.go",
		Old:  `different = exception.Reason`,
		New:  `_ = exception.Reason`,
		Test: Test{"./integration/brokers", "^TestRabbitRefusesQueuesThatLoseMessages$"},
	},
	{
		Name: "nats-log-of-a-work-queue", Why: "a log misses what consumers have acknowledged",
		File: "broker/natsbroker/log.go",
		Old:  `kept != jetstream.LimitsPolicy {`,
		New:  `kept != jetstream.LimitsPolicy && false {`,
		Test: Test{"./integration/brokers", "^TestNATSLogRefusesStreamsThatDropWhatOthersHaveRead$"},
	},
}
