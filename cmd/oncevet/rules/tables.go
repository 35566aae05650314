package rules

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// entry names functions and methods of a package, without the version of its
// module. A path that ends in "/..." is that of all packages below it.
type entry struct {
	path  string
	types string // of the receiver, separated by spaces; "-": functions; "": any, also functions
	names string // separated by spaces; a name may end in an asterisk
}

// publishes are calls that hand a message to a broker or a queue of jobs.
var publishes = []entry{
	{once + "/broker", "Publisher", "Publish"},
	{"github.com/rabbitmq/amqp091-go", "Channel", "Publish*"},
	{"github.com/streadway/amqp", "Channel", "Publish*"},
	{"github.com/wagslane/go-rabbitmq", "Publisher", "Publish*"},
	{"github.com/nats-io/nats.go", "Conn EncodedConn JetStream JetStreamContext", "Publish* Request*"},
	{"github.com/nats-io/nats.go/jetstream", "Publisher JetStream", "Publish*"},
	{"github.com/segmentio/kafka-go", "Writer Conn", "WriteMessages"},
	{"github.com/IBM/sarama", "SyncProducer AsyncProducer", "SendMessage SendMessages Input"},
	{"github.com/Shopify/sarama", "SyncProducer AsyncProducer", "SendMessage SendMessages Input"},
	{"github.com/confluentinc/confluent-kafka-go/kafka", "Producer", "Produce ProduceChannel ProduceBatch"},
	{"github.com/twmb/franz-go/pkg/kgo", "Client GroupTransactSession", "Produce ProduceSync TryProduce"},
	{"github.com/aws/aws-sdk-go-v2/service/sqs", "Client", "SendMessage SendMessageBatch"},
	{"github.com/aws/aws-sdk-go-v2/service/sns", "Client", "Publish PublishBatch"},
	{"github.com/aws/aws-sdk-go-v2/service/eventbridge", "Client", "PutEvents"},
	{"github.com/aws/aws-sdk-go-v2/service/kinesis", "Client", "PutRecord PutRecords"},
	{"github.com/aws/aws-sdk-go/service/sqs/...", "",
		"SendMessage SendMessageWithContext SendMessageBatch SendMessageBatchWithContext"},
	{"github.com/aws/aws-sdk-go/service/sns/...", "",
		"Publish PublishWithContext PublishBatch PublishBatchWithContext"},
	{"cloud.google.com/go/pubsub", "Topic Publisher", "Publish"},
	{"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus", "Sender",
		"SendMessage SendMessageBatch SendAMQPAnnotatedMessage ScheduleMessages"},
	{"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs", "ProducerClient", "SendEventDataBatch"},
	{"github.com/redis/go-redis", "", "Publish SPublish XAdd"},
	{"github.com/go-redis/redis", "", "Publish SPublish XAdd"},
	{"github.com/ThreeDotsLabs/watermill/message", "Publisher", "Publish"},
	{"github.com/apache/pulsar-client-go/pulsar", "Producer", "Send SendAsync"},
	{"github.com/eclipse/paho.mqtt.golang", "Client", "Publish"},
	{"gocloud.dev/pubsub", "Topic", "Send"},
	{"github.com/cloudevents/sdk-go/client", "Client", "Send Request"},
	{"github.com/dapr/go-sdk/client", "Client", "PublishEvent*"},
	{"github.com/hibiken/asynq", "Client", "Enqueue EnqueueContext"},
	{"github.com/riverqueue/river", "Client", "Insert InsertMany InsertManyFast"},
}

// acks are calls that settle a delivery.
var acks = []entry{
	{once + "/broker", "Session", "Ack Reject Return"},
	{"github.com/rabbitmq/amqp091-go", "Delivery Channel Acknowledger", "Ack Nack Reject"},
	{"github.com/streadway/amqp", "Delivery Channel Acknowledger", "Ack Nack Reject"},
	{"github.com/nats-io/nats.go", "Msg", "Ack AckSync Nak NakWithDelay Term"},
	{"github.com/nats-io/nats.go/jetstream", "Msg", "Ack DoubleAck Nak NakWithDelay Term TermWithReason"},
	{"github.com/segmentio/kafka-go", "Reader Generation", "CommitMessages CommitOffsets"},
	{"github.com/IBM/sarama", "ConsumerGroupSession PartitionOffsetManager", "MarkMessage MarkOffset Commit"},
	{"github.com/Shopify/sarama", "ConsumerGroupSession PartitionOffsetManager", "MarkMessage MarkOffset Commit"},
	{"github.com/confluentinc/confluent-kafka-go/kafka", "Consumer",
		"Commit CommitMessage CommitOffsets StoreMessage StoreOffsets"},
	{"github.com/twmb/franz-go/pkg/kgo", "Client",
		"CommitRecords CommitOffsets CommitOffsetsSync CommitUncommittedOffsets CommitMarkedOffsets " +
			"MarkCommitRecords MarkCommitOffsets"},
	{"github.com/aws/aws-sdk-go-v2/service/sqs", "Client", "DeleteMessage DeleteMessageBatch"},
	{"github.com/aws/aws-sdk-go/service/sqs/...", "",
		"DeleteMessage DeleteMessageWithContext DeleteMessageBatch DeleteMessageBatchWithContext"},
	{"cloud.google.com/go/internal/pubsub", "Message", "Ack Nack AckWithResult NackWithResult"},
	{"cloud.google.com/go/pubsub/...", "Message", "Ack Nack AckWithResult NackWithResult"},
	{"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus", "Receiver SessionReceiver",
		"CompleteMessage AbandonMessage DeadLetterMessage DeferMessage"},
	{"github.com/redis/go-redis", "", "XAck XAckDel"},
	{"github.com/go-redis/redis", "", "XAck"},
	{"github.com/ThreeDotsLabs/watermill/message", "Message", "Ack Nack"},
	{"github.com/apache/pulsar-client-go/pulsar", "Consumer",
		"Ack AckID AckCumulative AckIDCumulative AckIDList Nack NackID"},
	{"gocloud.dev/pubsub", "Message", "Ack Nack"},
}

// effects are calls that change another system. Those of SDKs that have a
// function for everything are found by their shape: see isEffect.
var effects = []entry{
	{"net/http", "Client", "Do Get Head Post PostForm"},
	{"net/http", "RoundTripper Transport", "RoundTrip"},
	{"net/http", "-", "Get Head Post PostForm"},
	{"net/smtp", "-", "SendMail"},
	{"net/smtp", "Client", "Mail Rcpt Data"},
	{"net/rpc", "Client", "Call Go"},
	{"google.golang.org/grpc", "ClientConn ClientConnInterface", "Invoke NewStream"},
	{"cloud.google.com/go/storage", "ObjectHandle", "NewWriter Delete Update"},
	{"github.com/aws/aws-sdk-go-v2/feature/s3/manager", "Uploader", "Upload"},
	{"github.com/minio/minio-go", "Client Core", "PutObject FPutObject RemoveObject* CopyObject ComposeObject"},
	{"github.com/redis/rueidis", "Client DedicatedClient", "Do DoMulti"},
	{"github.com/gomodule/redigo/redis", "Conn", "Do Send"},
	{"github.com/bradfitz/gomemcache/memcache", "Client",
		"Set Add Replace Append Prepend Delete DeleteAll Increment Decrement CompareAndSwap Touch"},
	{"github.com/go-resty/resty", "Request", "Get Head Post Put Patch Delete Execute Send"},
	{"resty.dev", "Request", "Get Head Post Put Patch Delete Execute Send"},
	{"github.com/hashicorp/go-retryablehttp", "Client -", "Do Get Head Post PostForm"},
	{"github.com/valyala/fasthttp", "Client HostClient PipelineClient -",
		"Do DoTimeout DoDeadline DoRedirects Get Post"},
	{"github.com/twilio/twilio-go/rest/...", "", "Create* Update* Delete*"},
	{"github.com/sendgrid/sendgrid-go", "", "Send SendWithContext API MakeRequest*"},
	{"github.com/mailgun/mailgun-go", "", "Send"},
	{"github.com/slack-go/slack", "Client", "Post* Send* Upload* Update* Delete*"},
	{"github.com/wneessen/go-mail", "Client", "Send DialAndSend DialAndSendWithContext"},
	{"gopkg.in/gomail", "Dialer", "DialAndSend"},
	{"gopkg.in/gomail", "-", "Send"},
	{"go.mongodb.org/mongo-driver/mongo", "Collection",
		"InsertOne InsertMany UpdateOne UpdateMany UpdateByID ReplaceOne DeleteOne DeleteMany " +
			"BulkWrite FindOneAndUpdate FindOneAndReplace FindOneAndDelete"},
	{"go.temporal.io/sdk/client", "Client",
		"ExecuteWorkflow SignalWorkflow SignalWithStartWorkflow CancelWorkflow TerminateWorkflow UpdateWorkflow"},
}

// matches reports whether a call is of one of the entries.
func (x *index) matches(call *ast.CallExpr, entries []entry) bool {
	f := x.callee(call)
	if f == nil || f.Pkg() == nil {
		return false
	}
	at, on := unversioned(f.Pkg().Path()), "-"
	if recv := f.Signature().Recv(); recv != nil {
		_, on = named(recv.Type())
	}
	return slices.ContainsFunc(entries, func(e entry) bool {
		dir, below := strings.CutSuffix(e.path, "/...")
		if at != dir && !(below && strings.HasPrefix(at, dir+"/")) {
			return false
		}
		return (e.types == "" || slices.Contains(strings.Fields(e.types), on)) &&
			slices.ContainsFunc(strings.Fields(e.names), func(name string) bool {
				prefix, open := strings.CutSuffix(name, "*")
				return name == f.Name() || open && strings.HasPrefix(f.Name(), prefix)
			})
	})
}

// optionTypes are the types of the options with which generated clients of an
// RPC system end.
var optionTypes = []string{"google.golang.org/grpc.CallOption", "github.com/googleapis/gax-go.CallOption",
	"google.golang.org/api/googleapi.CallOption"}

// isEffect reports whether a call changes another system.
func (x *index) isEffect(call *ast.CallExpr) bool {
	if x.matches(call, effects) {
		return true
	}
	f := x.callee(call)
	if f == nil || f.Pkg() == nil {
		return false
	}
	sig, at := f.Signature(), unversioned(f.Pkg().Path())
	path, on := "", ""
	if sig.Recv() != nil {
		path, on = named(sig.Recv().Type())
	}
	if path == "" {
		path = at
	}
	if x.isRPC(f) || x.sendsRequest(f) {
		return true
	}
	switch {
	case strings.HasPrefix(at, "github.com/aws/aws-sdk-go-v2/service/"):
		return on == "Client" && takesContext(sig) && !reads(f.Name())
	case strings.HasPrefix(at, "github.com/aws/aws-sdk-go/service/"):
		return on != "" && !reads(f.Name()) && returnsError(sig) && !strings.HasPrefix(f.Name(), "New")
	case strings.HasPrefix(at, "github.com/Azure/azure-sdk-for-go/sdk/"):
		return strings.HasSuffix(on, "Client") && takesContext(sig) && !reads(f.Name())
	case at == "github.com/stripe/stripe-go" || strings.HasPrefix(at, "github.com/stripe/stripe-go/"):
		return returnsError(sig) && takesParams(sig) && !reads(f.Name()) // New creates
	case at == "github.com/redis/go-redis" || at == "github.com/go-redis/redis":
		return x.changesRedis(call, f)
	}
	return false
}

// isRPC reports whether a method is one of a generated client.
func (x *index) isRPC(f *types.Func) bool {
	sig := f.Signature()
	if sig.Recv() == nil || sig.Params().Len() == 0 {
		return false
	}
	last := sig.Params().At(sig.Params().Len() - 1).Type()
	if slice, ok := last.(*types.Slice); ok && sig.Variadic() {
		last = slice.Elem()
	}
	path, name := named(last)
	if path == "connectrpc.com/connect" && name == "Request" { // a handler has the same signature, and is no interface
		return types.IsInterface(sig.Recv().Type()) && returnsError(sig)
	}
	return slices.Contains(optionTypes, path+"."+name) && returnsError(sig)
}

// sendsRequest reports whether a method of another package or of an interface sends
// a request: it has the signature of http.Client.Do.
func (x *index) sendsRequest(f *types.Func) bool {
	sig := f.Signature()
	if x.decls[f] != nil || sig.Recv() == nil || sig.Params().Len() != 1 || sig.Results().Len() != 2 {
		return false
	}
	return sig.Params().At(0).Type().String() == "*net/http.Request" &&
		sig.Results().At(0).Type().String() == "*net/http.Response" && returnsError(sig)
}

func takesContext(sig *types.Signature) bool {
	return sig.Params().Len() > 0 && sig.Params().At(0).Type().String() == "context.Context"
}

func returnsError(sig *types.Signature) bool {
	n := sig.Results().Len()
	return n > 0 && sig.Results().At(n-1).Type().String() == "error"
}

// takesParams reports whether a function takes parameters of Stripe.
func takesParams(sig *types.Signature) bool {
	for p := range sig.Params().Variables() {
		if path, name := named(p.Type()); path == "github.com/stripe/stripe-go" && strings.HasSuffix(name, "Params") {
			return true
		}
	}
	return false
}

// reads reports whether the name of a method of an SDK says that it changes
// nothing.
func reads(name string) bool {
	return slices.ContainsFunc([]string{"Get", "List", "Describe", "Head", "Query", "Scan", "BatchGet",
		"TransactGet", "Search", "Retrieve", "Read",
		"Download", "Lookup", "Check", "Count", "Options", "Receive", "Peek", "Close"},
		func(verb string) bool { return strings.HasPrefix(name, verb) })
}

// redisReads are the commands of go-redis that change nothing, and methods that
// are none.
var redisReads = strings.Fields(`
	Get MGet GetBit GetRange Exists TTL PTTL Type Keys Scan Dump StrLen Ping Info DBSize Time Echo HGet
	HGetAll HMGet HLen HKeys HVals HExists HScan HStrLen SCard SMembers SMembersMap SIsMember
	SMIsMember SInter SUnion SDiff SScan ZScore ZMScore ZRank ZRevRank ZCard ZCount ZScan ZLexCount
	LLen LRange LIndex LPos XLen XInfoStream BitCount BitPos PFCount GeoPos GeoDist Do Process Watch
	Subscribe PSubscribe SSubscribe Pipeline TxPipeline Pipelined TxPipelined Close AddHook PoolStats
	Options Conn ScriptExists ScriptLoad Wait WaitAOF`)

// changesRedis reports whether a call is a command that changes Redis at once. A
// command of a pipeline waits for its Exec, and one of a transaction of
// redisstore for its commit.
func (x *index) changesRedis(call *ast.CallExpr, f *types.Func) bool {
	on := x.receiver(call)
	if on == nil || !takesContext(f.Signature()) {
		return false
	}
	path, name := named(x.typeOf(on))
	if path != "github.com/redis/go-redis" && path != "github.com/go-redis/redis" {
		return false
	}
	switch name {
	case "Pipeliner", "Pipeline":
		return f.Name() == "Exec"
	case "Client", "ClusterClient", "Ring", "UniversalClient", "Cmdable", "Conn":
		return !slices.Contains(redisReads, f.Name()) && !strings.HasSuffix(f.Name(), "RO") &&
			!strings.HasPrefix(f.Name(), "ZRange") &&
			!strings.HasPrefix(f.Name(), "ZRevRange") && !strings.HasPrefix(f.Name(), "XRange") &&
			!strings.HasPrefix(f.Name(), "XRevRange")
	}
	return false
}

// shown names the method or function of a call as it is written.
func shown(call *ast.CallExpr) string { return types.ExprString(call.Fun) }
