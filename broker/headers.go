package broker

// The reserved names of headers. This file declares each of them, with its one
// meaning. No adapter may use one for anything else.

// Headers of messages. The library sets them, every adapter carries them like any
// other header, and every consumer reads them.
const (
	// KeyHeader has the key of the unit of work that put the message into an
	// outbox: the cause of the message, in the form of once.Key.String. It is not
	// the ordering key.
	KeyHeader = "once-key"

	// SeqHeader has a number that rises from message to message of an ordering
	// key, and stays the same when a message is published again.
	SeqHeader = "once-seq"

	// SealedHeader marks a message whose headers, time and body are sealed.
	SealedHeader = "once-sealed"

	// ReasonHeader of a dead letter has the reason of its rejection.
	ReasonHeader = "once-reason"

	// DescriptionHeader of a dead letter has the longer text of Service Bus, beside
	// the reason.
	DescriptionHeader = "once-description"

	// TopicHeader of a dead letter has the topic that the message was published
	// to, where that of the dead letter is another one.
	TopicHeader = "once-topic"

	// OriginHeader of a dead letter tells where the message was stored, as
	// [Delivery.Origin].
	OriginHeader = "once-origin"

	// OriginalIDHeader of a message on a shelf has its ID, where the shelf needs
	// another one.
	OriginalIDHeader = "once-original-id"

	// OriginalOrderingKeyHeader of a message on a shelf has its ordering key, where
	// the shelf needs another one.
	OriginalOrderingKeyHeader = "once-original-ordering-key"
)

// Fields of messages. An adapter uses these names for what its system has no field
// for. They are no headers of messages: [Message.Check] refuses them, and no
// received message has one.
const (
	IDField          = "once-id"           // Message.ID
	OrderingKeyField = "once-ordering-key" // Message.OrderingKey
	TimeField        = "once-time"         // Message.Time
	TopicField       = "once-sns-topic"    // Message.Topic, of a message that goes through SNS to SQS
	EncodingField    = "once-encoding"     // how the body is encoded for SQS
	HeadersField     = "once-headers"      // the headers that share an attribute of SQS, as a JSON object
	EscapedField     = "once-escaped"      // name=value of a header whose value NATS would trim
	AttemptField     = "once-attempt"      // deliveries of the messages that this one replaces, of Service Bus
	NumberField      = "once-publish"      // the number of the confirm, of RabbitMQ
	SealedField      = "once-sealed-as"    // the SealedHeader of a message in a queue of a store, which has one of its own
)

// PlaceHeader has the SeqHeader of a message from a database's log that its relay
// has put into the table. It is in the row only, and is not published.
const PlaceHeader = "once-log-place"

// HeaderPrefix begins the name that a header has in an HTTP request, if its own
// name could be taken for something else there.
const HeaderPrefix = "once-header-"

// IsField reports whether a name is that of a field, which no header may have. Names
// are in lower case.
func IsField(name string) bool {
	switch name {
	case IDField, OrderingKeyField, TimeField, TopicField, EncodingField, HeadersField, EscapedField, AttemptField, NumberField, SealedField:
		return true
	}
	return false
}

// Headers returns the names of the headers that the library sets.
func Headers() []string {
	return []string{KeyHeader, SeqHeader, SealedHeader, ReasonHeader, DescriptionHeader, TopicHeader, OriginHeader,
		OriginalIDHeader, OriginalOrderingKeyHeader}
}
