package sqsbroker

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/effectively-once/once/broker"
)

// The attributes of a message. Headers are attributes of their own, as far as
// SQS allows them.
const (
	attributeID       = broker.IDField
	attributeKey      = broker.OrderingKeyField
	attributeTime     = broker.TimeField     // RFC 3339
	attributeTopic    = broker.TopicField    // of a message that goes through SNS
	attributeEncoding = broker.EncodingField // of the body, if it is not plain
	attributeHeaders  = broker.HeadersField  // the other headers, as a JSON object
)

// The encodings of a body that is no text that SQS accepts.
const (
	encodingBase64 = "base64"
	encodingEmpty  = "empty" // the body is a space, because SQS wants one character
)

const (
	maxAttributes = 10
	maxQueueSize  = 1 << 20   // of a message, and of a batch
	maxTopicSize  = 256 << 10 // likewise
	maxEntries    = 10        // of a batch
	maxFIFOID     = 128
)

// stringType is the type of all attributes that this package sends.
const stringType = "String"

// wire is a message as SQS and SNS carry it.
type wire struct {
	body       string
	attributes map[string]string
	group      string // of a FIFO queue or topic; otherwise empty
	dedup      string // likewise
}

func (w *wire) size() int {
	n := len(w.body)
	for name, value := range w.attributes {
		n += len(name) + len(stringType) + len(value)
	}
	return n
}

// encode checks a message and returns it as it is sent.
func encode(m *broker.Message, fifo, unordered, throughTopic bool) (*wire, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	if m.OrderingKey != "" && !fifo && !unordered {
		return nil, fmt.Errorf("%w: message %q has the ordering key %.40q, and %q is not FIFO, so it would not keep its order: publish to a FIFO queue or topic, "+
			"or set Options.Unordered", broker.ErrInvalid, m.ID, m.OrderingKey, m.Topic)
	}
	w := &wire{attributes: map[string]string{attributeID: m.ID}}
	if m.OrderingKey != "" {
		w.attributes[attributeKey] = m.OrderingKey
	}
	if !m.Time.IsZero() {
		w.attributes[attributeTime] = m.Time.UTC().Format(time.RFC3339Nano)
	}
	if throughTopic {
		w.attributes[attributeTopic] = m.Topic
	}
	w.setBody(m.Body)
	if err := w.setHeaders(m.Header); err != nil {
		return nil, fmt.Errorf("%w: the headers of message %q: %w", broker.ErrInvalid, m.ID, err)
	}
	if fifo {
		w.dedup, w.group = fifoID(m.ID), fifoID(m.ID)
		if m.OrderingKey != "" {
			w.group = fifoID(m.OrderingKey)
		}
	}
	limit := maxQueueSize
	if throughTopic {
		limit = maxTopicSize
	}
	if size := w.size(); size > limit {
		return nil, fmt.Errorf("%w: message %q has %d bytes with its attributes, and %d are allowed: store the body elsewhere and send a reference",
			broker.ErrInvalid, m.ID, size, limit)
	}
	return w, nil
}

func (w *wire) setBody(body []byte) {
	switch {
	case len(body) == 0:
		w.body, w.attributes[attributeEncoding] = " ", encodingEmpty
	case isText(string(body)):
		w.body = string(body)
	default:
		w.body, w.attributes[attributeEncoding] = base64.StdEncoding.EncodeToString(body), encodingBase64
	}
}

// setHeaders adds headers in the order of their names, as long as there is room
// for attributes. The others share an attribute.
func (w *wire) setHeaders(header map[string]string) error {
	var own []string
	shared := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if canBeAttribute(name, header[name]) {
			own = append(own, name)
		} else {
			shared[name] = header[name]
		}
	}
	room := maxAttributes - len(w.attributes)
	if len(shared) > 0 || len(own) > room {
		room--
	}
	for i, name := range own {
		if i < room {
			w.attributes[name] = header[name]
		} else {
			shared[name] = header[name]
		}
	}
	if len(shared) == 0 {
		return nil
	}
	text, err := json.Marshal(shared)
	if err != nil {
		return err
	}
	w.attributes[attributeHeaders] = unforbidden.Replace(string(text))
	return nil
}

// unforbidden writes the only characters of a JSON text that SQS does not accept.
var unforbidden = strings.NewReplacer("\uFFFE", `\ufffe`, "\uFFFF", `\uffff`)

// canBeAttribute reports whether a header can be an attribute of its own.
func canBeAttribute(name, value string) bool {
	return value != "" && isText(value) && isHeader(name) && name[0] != '.' && name[len(name)-1] != '.' && !strings.Contains(name, "..") &&
		!strings.HasPrefix(name, "aws.") && !strings.HasPrefix(name, "amazon.")
}

// isHeader reports whether a header has a name that a [broker.Message] may have.
// Other programs may write other names.
func isHeader(name string) bool {
	m := broker.Message{ID: "-", Topic: "-", Header: map[string]string{name: ""}}
	return m.Check() == nil
}

// isText reports whether SQS accepts a text.
func isText(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF
	})
}

const digestPrefix = "sha256-"

// fifoID returns a text as a group ID or a deduplication ID, which are short and
// have no spaces. A text that cannot be one is replaced by its digest.
func fifoID(text string) string {
	plain := text != "" && len(text) <= maxFIFOID && !strings.HasPrefix(text, digestPrefix) &&
		!strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
	if plain {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return digestPrefix + hex.EncodeToString(sum[:])
}

// The headers of a message that another program has sent.
const (
	messageIDHeader      = "sqs-message-id"
	notificationIDHeader = "sns-message-id"
)

// decode returns a message from any sender.
func decode(queue string, in *types.Message) *broker.Message {
	m := &broker.Message{Topic: queue, Time: millis(in.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)])}
	m.Attempt, _ = strconv.Atoi(in.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)]) // 0: unknown
	attributes, body := textsOf(in.MessageAttributes), aws.ToString(in.Body)
	header := make(map[string]string)
	var outside map[string]string // what a dead letter has beside its envelope
	if n := unwrap(attributes, body); n != nil {
		outside, attributes = attributes, make(map[string]string)
		for name, a := range n.MessageAttributes {
			attributes[name] = a.Value
		}
		body = n.Message
		m.Topic, m.Time = part(n.TopicArn, 5), n.Timestamp
		header[notificationIDHeader] = n.MessageId
	}
	if attributes[attributeID] == "" {
		header[messageIDHeader] = aws.ToString(in.MessageId)
		m.OrderingKey = in.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
	} else {
		delete(header, notificationIDHeader)
		m.OrderingKey = attributes[attributeKey]
	}
	if topic := attributes[attributeTopic]; topic != "" {
		m.Topic = topic
	}
	if t, err := time.Parse(time.RFC3339Nano, attributes[attributeTime]); err == nil {
		m.Time = t
	}
	m.ID, m.Body = attributes[attributeID], bodyOf(body, attributes[attributeEncoding])
	for name, value := range attributes {
		header[strings.ToLower(name)] = value
	}
	var shared map[string]string
	if json.Unmarshal([]byte(attributes[attributeHeaders]), &shared) == nil {
		maps.Copy(header, shared)
	}
	for name, value := range outside {
		header[strings.ToLower(name)] = value
	}
	maps.DeleteFunc(header, func(name, _ string) bool { return broker.IsField(name) })
	if len(header) > 0 {
		m.Header = header
	}
	return m
}

// textsOf returns attributes as texts. Binary ones are in base64.
func textsOf(attributes map[string]types.MessageAttributeValue) map[string]string {
	texts := make(map[string]string, len(attributes))
	for name, a := range attributes {
		if a.StringValue != nil {
			texts[name] = *a.StringValue
		} else {
			texts[name] = base64.StdEncoding.EncodeToString(a.BinaryValue)
		}
	}
	return texts
}

func bodyOf(body, encoding string) []byte {
	switch encoding {
	case encodingEmpty:
		return nil
	case encodingBase64:
		if plain, err := base64.StdEncoding.DecodeString(body); err == nil {
			return plain
		}
	}
	return []byte(body)
}

// millis returns the time of a text with milliseconds; zero if it has none.
func millis(text string) time.Time {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(n).UTC()
}

// notification is the envelope in which SNS delivers a message, unless the
// subscription is raw.
type notification struct {
	Type, MessageId, TopicArn, Message string
	Timestamp                          time.Time
	MessageAttributes                  map[string]struct{ Type, Value string }
}

// unwrap returns the envelope that a body is, or nil. A message of this package
// is in no envelope if it has attributes of its own.
func unwrap(attributes map[string]string, body string) *notification {
	if attributes[attributeID] != "" || !strings.HasPrefix(body, "{") {
		return nil
	}
	var n notification
	if json.Unmarshal([]byte(body), &n) != nil || n.Type != "Notification" || part(n.TopicArn, 2) != "sns" || n.MessageId == "" {
		return nil
	}
	return &n
}
