package doctor_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/internal/fakesqs"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store"
)

// awsKeys are credentials for imitations of AWS.
func awsKeys(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
}

func sqsClient(endpoint string) *sqs.Client {
	return sqs.New(sqs.Options{Region: fakesqs.Region, BaseEndpoint: &endpoint, Credentials: aws.AnonymousCredentials{}})
}

func createQueue(t *testing.T, client *sqs.Client, name string, attributes map[string]string) {
	t.Helper()
	if _, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes}); err != nil {
		t.Fatal(err)
	}
}

// wantFound compares the names of the findings about a broker.
func wantFound(t *testing.T, what, url string, on *target.Target, only string, want ...string) doctor.Report {
	t.Helper()
	r := examine(t, url, on, only)
	var got []string
	for _, f := range r.Findings {
		got = append(got, f.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: found %q, want %q: %+v", what, got, want, r.Findings)
	}
	return r
}

// withReader returns a database with a registered consumer of a source, and a key of
// it that is kept for a time.
func withReader(t *testing.T, source string, facts map[string]string, keep time.Duration) *target.Target {
	t.Helper()
	on := fresh(t)
	register(t, on, "billing", store.SourceText(source, facts), keep)
	return on
}

func seconds(d time.Duration) string { return fmt.Sprint(int(d / time.Second)) }

// redriveTo is a redrive policy to a queue of fakesqs.
func redriveTo(queue string, limit int) string {
	return fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:%s:%s:%s","maxReceiveCount":%d}`, fakesqs.Region, fakesqs.Account, queue, limit)
}

func TestSettingsOfQueuesOfSQS(t *testing.T) {
	awsKeys(t)
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		fifo       bool
		attributes map[string]string
		dead       time.Duration // the retention of the queue for dead letters; 0: there is no such queue
		want       []string
	}{
		"standard":                       {false, map[string]string{"RedrivePolicy": redriveTo("dead", 1000)}, 14 * day, []string{"sqs-unordered"}},
		"fifo":                           {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000)}, 14 * day, nil},
		"no policy":                      {true, nil, 0, []string{"sqs-no-dead-letters"}},
		"few receives":                   {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 5)}, 14 * day, []string{"sqs-receive-limit"}},
		"dead letters nowhere":           {true, map[string]string{"RedrivePolicy": redriveTo("gone.fifo", 1000)}, 0, []string{"sqs-dead-letters-lost"}},
		"dead letters elsewhere":         {true, map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:1:gone.fifo","maxReceiveCount":"1000"}`}, 0, nil},
		"dead letters as long, standard": {false, map[string]string{"RedrivePolicy": redriveTo("dead", 1000)}, 4 * day, []string{"sqs-unordered", "sqs-dead-letters-expire"}},
		"dead letters as long, fifo":     {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000)}, 4 * day, nil},
		"dead letters shorter":           {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000)}, 2 * day, []string{"sqs-dead-letters-expire"}},
		"both as long as can be": {false, map[string]string{"RedrivePolicy": redriveTo("dead", 1000), "MessageRetentionPeriod": seconds(14 * day)}, 14 * day,
			[]string{"sqs-unordered"}},
		"an hour":          {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000), "MessageRetentionPeriod": "3600"}, 14 * day, []string{"sqs-retention"}},
		"never hidden":     {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000), "VisibilityTimeout": "0"}, 14 * day, []string{"sqs-visibility"}},
		"hidden for hours": {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000), "VisibilityTimeout": "7200"}, 14 * day, []string{"sqs-visibility"}},
		"by content":       {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000), "ContentBasedDeduplication": "true"}, 14 * day, []string{"sqs-content-deduplication"}},
		"by group": {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000), "DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}, 14 * day,
			[]string{"sqs-deduplication-scope"}},
		"by queue": {true, map[string]string{"RedrivePolicy": redriveTo("dead.fifo", 1000), "DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"}, 14 * day,
			[]string{"sqs-throughput-limit"}},
	} {
		endpoint := httptest.NewServer(new(fakesqs.Server))
		client, suffix, attributes := sqsClient(endpoint.URL), "", maps.Clone(c.attributes)
		if c.fifo {
			suffix = ".fifo"
			if attributes == nil {
				attributes = make(map[string]string)
			}
			attributes["FifoQueue"] = "true"
		}
		createQueue(t, client, "orders"+suffix, attributes)
		if c.dead > 0 {
			dead := map[string]string{"MessageRetentionPeriod": seconds(c.dead)}
			if c.fifo {
				dead["FifoQueue"] = "true"
			}
			createQueue(t, client, "dead"+suffix, dead)
		}
		wantFound(t, name, "sqs://"+fakesqs.Region+"?endpoint="+endpoint.URL, nil, "", c.want...)
		endpoint.Close()
	}
}

func TestSettingsOfTopicsOfSNS(t *testing.T) {
	awsKeys(t)
	const redrives = `{"deadLetterTargetArn":"arn:aws:sqs:eu-north-1:123456789012:dead"}`
	subscribed := func(queue string, raw bool, attributes map[string]string) func(*fakesqs.Server, string) {
		return func(s *fakesqs.Server, topic string) {
			s.Subscribe(topic, queue, raw)
			s.SetSubscriptionAttributes(topic, queue, attributes)
		}
	}
	good := map[string]string{"RedrivePolicy": redrives}
	for name, c := range map[string]struct {
		topic string
		set   func(*fakesqs.Server, string)
		want  []string
	}{
		"standard":           {"news", subscribed("orders", true, good), []string{"sns-unordered"}},
		"fifo":               {"news.fifo", subscribed("orders.fifo", true, good), nil},
		"nobody":             {"news.fifo", func(*fakesqs.Server, string) {}, []string{"sns-nobody-subscribes"}},
		"nobody yet":         {"news.fifo", subscribed("orders.fifo", true, map[string]string{"PendingConfirmation": "true"}), []string{"sns-nobody-subscribes", "sns-unconfirmed"}},
		"no redrive":         {"news.fifo", subscribed("orders.fifo", true, nil), []string{"sns-no-redrive"}},
		"no queue":           {"news.fifo", subscribed("gone.fifo", true, nil), []string{"sns-queue-missing"}},
		"no queue, redrives": {"news.fifo", subscribed("gone.fifo", true, good), []string{"sns-queue-missing"}},
		"order lost":         {"news.fifo", subscribed("orders", true, good), []string{"sns-order-lost"}},
		"envelope":           {"news.fifo", subscribed("orders.fifo", false, good), []string{"sns-envelope"}},
		"filter":             {"news.fifo", subscribed("orders.fifo", true, map[string]string{"RedrivePolicy": redrives, "FilterPolicy": `{"kind":["x"]}`}), []string{"sns-filter"}},
		"deduplication": {"news.fifo", func(s *fakesqs.Server, topic string) {
			subscribed("orders.fifo", true, good)(s, topic)
			s.SetTopicAttributes(topic, map[string]string{"ContentBasedDeduplication": "true", "FifoThroughputScope": "MessageGroup"})
		}, []string{"sns-content-deduplication", "sns-deduplication-scope"}},
	} {
		service := new(fakesqs.Server)
		endpoint := httptest.NewServer(service)
		client := sqsClient(endpoint.URL)
		createQueue(t, client, "orders", nil)
		createQueue(t, client, "orders.fifo", map[string]string{"FifoQueue": "true"})
		service.CreateTopic(c.topic)
		c.set(service, c.topic)
		from := "sqs://" + fakesqs.Region + "?endpoint=" + endpoint.URL + "&topics=" + url.QueryEscape("arn:aws:sns:"+fakesqs.Region+":"+fakesqs.Account+":")
		r := wantFound(t, name, from, nil, "news*", c.want...)
		for _, f := range r.Findings {
			if unsafe := name == "nobody" || name == "no queue" || f.Name == "sns-nobody-subscribes"; unsafe != (f.Severity == doctor.Unsafe) {
				t.Errorf("%s: %s is %s", name, f.Name, f.Severity)
			}
		}
		endpoint.Close()
	}
}

func TestConsumersOfSQSAreCompared(t *testing.T) {
	awsKeys(t)
	service := new(fakesqs.Server)
	endpoint := httptest.NewServer(service)
	defer endpoint.Close()
	from, client := "sqs://"+fakesqs.Region+"?endpoint="+endpoint.URL, sqsClient(endpoint.URL)
	here := map[string]string{"region": fakesqs.Region, "account": fakesqs.Account}
	on := withReader(t, "sqs queue orders", here, 0)
	wantFound(t, "deleted", from, on, "", "source-missing")
	wantFound(t, "of another region", from, withReader(t, "sqs queue orders", map[string]string{"region": "us-east-1"}, 0), "")
	createQueue(t, client, "orders", nil)
	createQueue(t, client, "others.fifo", map[string]string{"FifoQueue": "true"})
	wantFound(t, "there", from, on, "", "sqs-no-dead-letters", "sqs-unordered")
	r := wantFound(t, "keys are forgotten first", from, withReader(t, "sqs queue orders", here, 48*time.Hour), "", "redelivery-outlives-keys", "sqs-no-dead-letters", "sqs-unordered")
	if !strings.Contains(fmt.Sprint(r.Findings), "will not start again") {
		t.Errorf("a consumer of SQS compares by itself: %+v", r.Findings)
	}
	wantFound(t, "keys are kept", from, withReader(t, "sqs queue orders", here, 97*time.Hour), "", "sqs-no-dead-letters", "sqs-unordered")

	service.AddFault("ListQueues", fakesqs.Fault{Code: "AccessDeniedException", Sender: true})
	service.AddFault("ListQueues", fakesqs.Fault{Code: "AccessDeniedException", Sender: true})
	wantFound(t, "denied", from, nil, "", "not-checked")
	service.AddFault("ListQueues", fakesqs.Fault{Code: "InvalidClientTokenId", Sender: true})
	if _, err := doctor.Dial(t.Context(), from); err == nil || errors.Is(err, doctor.ErrBroker) {
		t.Errorf("wrong credentials: %v", err)
	}
	for _, wrong := range []string{"sqs://a,b", "sqs://key@eu-north-1", "sqs://eu-north-1/orders", "sqs://eu-north-1:9324", "sqs://eu-north-1?x=1", "sqs://eu-north-1?topics=orders"} {
		if _, err := doctor.Dial(t.Context(), wrong); !errors.Is(err, doctor.ErrBroker) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	if _, err := doctor.Dial(t.Context(), "sqs://?endpoint="+endpoint.URL); !errors.Is(err, doctor.ErrBroker) {
		t.Errorf("without a region: %v", err)
	}
	t.Setenv("AWS_REGION", fakesqs.Region)
	wantFound(t, "with the region of the environment", "sqs://?endpoint="+endpoint.URL, nil, "others*", "sqs-no-dead-letters")
}

// ElasticMQ is an imitation of SQS that others have written.
func TestElasticMQIsExamined(t *testing.T) {
	endpoint := testenv.SQS(t)
	awsKeys(t)
	client, name := sqsClient(endpoint), "doctor-"+rand.Text()
	createQueue(t, client, name+"-dead.fifo", map[string]string{"FifoQueue": "true"})
	dead, err := client.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: aws.String(name + "-dead.fifo")})
	if err != nil {
		t.Fatal(err)
	}
	told, err := client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: dead.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		t.Fatal(err)
	}
	createQueue(t, client, name+".fifo", map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true",
		"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"5"}`, told.Attributes["QueueArn"])})
	createQueue(t, client, name, map[string]string{"VisibilityTimeout": "7200"})
	from := "sqs://" + fakesqs.Region + "?endpoint=" + endpoint
	wantFound(t, "all", from, nil, name+"*", "sqs-content-deduplication", "sqs-no-dead-letters", "sqs-receive-limit", "sqs-unordered", "sqs-visibility")
}
