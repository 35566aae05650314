package doctor_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/cmd/once/internal/doctor"
)

// fakeBus is the management API of a namespace of Service Bus: it answers with Atom
// feeds, in pages, as far as the official client asks for them.
type fakeBus struct {
	queues, topics map[string]described
	subscriptions  map[string]map[string]described // by topic
	noTopics       bool                            // it is in the basic tier
	denies         bool                            // the key has no right to manage
}

// described is what the service tells of something, by the names of elements.
type described map[string]string

// with returns the same with some changed, given as name=value.
func (is described) with(changes ...string) described {
	all := maps.Clone(is)
	for _, change := range changes {
		name, value, _ := strings.Cut(change, "=")
		all[name] = value
	}
	return all
}

// A queue, a subscription and a topic as they should be. Durations have the forms
// in which the service writes them.
var (
	busQueue = described{"LockDuration": "PT1M", "MaxSizeInMegabytes": "1024", "RequiresDuplicateDetection": "true", "RequiresSession": "true",
		"DefaultMessageTimeToLive": "P14D", "DeadLetteringOnMessageExpiration": "true", "DuplicateDetectionHistoryTimeWindow": "PT10M",
		"MaxDeliveryCount": "2000", "EnableBatchedOperations": "true", "Status": "Active",
		"AutoDeleteOnIdle": "P10675199DT2H48M5.4775807S", "EnablePartitioning": "false"}
	busSubscription = described{"LockDuration": "PT1M", "RequiresSession": "true", "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
		"DeadLetteringOnMessageExpiration": "false", "DeadLetteringOnFilterEvaluationExceptions": "true", "MaxDeliveryCount": "2000",
		"EnableBatchedOperations": "true", "Status": "Active", "AutoDeleteOnIdle": "P10675199DT2H48M5.4775807S"}
	busTopic = described{"DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S", "MaxSizeInMegabytes": "1024", "RequiresDuplicateDetection": "true",
		"DuplicateDetectionHistoryTimeWindow": "P1DT2H3M4.5S", "EnableBatchedOperations": "true", "Status": "Active", "SupportOrdering": "true",
		"AutoDeleteOnIdle": "P10675199DT2H48M5.4775807S", "EnablePartitioning": "false"}
)

func (f *fakeBus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, detail string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%d</Code><Detail>%s</Detail></Error>", status, detail)
	}
	switch path := strings.Trim(r.URL.Path, "/"); {
	case r.Method != http.MethodGet || r.URL.Query().Get("api-version") == "":
		refuse(http.StatusBadRequest, "only GET is imitated")
	case !strings.HasPrefix(r.Header.Get("Authorization"), "SharedAccessSignature sr="), f.denies:
		refuse(http.StatusUnauthorized, "Manage,EntityRead claims required for this operation.")
	case path == "$namespaceinfo":
		fmt.Fprint(w, `<entry xmlns="http://www.w3.org/2005/Atom"><title type="text">shop</title><content type="application/xml">`+
			`<NamespaceInfo xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><CreatedTime>2026-01-01T00:00:00Z</CreatedTime>`+
			`<MessagingSKU>Standard</MessagingSKU><ModifiedTime>2026-01-01T00:00:00Z</ModifiedTime><Name>shop</Name></NamespaceInfo></content></entry>`)
	case path == "$Resources/Queues":
		feed(w, r, "QueueDescription", f.queues)
	case path == "$Resources/Topics" && f.noTopics:
		refuse(http.StatusBadRequest, "The basic tier has no topics.")
	case path == "$Resources/Topics":
		feed(w, r, "TopicDescription", f.topics)
	case strings.HasSuffix(path, "/Subscriptions"):
		feed(w, r, "SubscriptionDescription", f.subscriptions[strings.TrimSuffix(path, "/Subscriptions")])
	default:
		refuse(http.StatusNotFound, "No service is hosted at the specified address.")
	}
}

// feed writes a page.
func feed(w http.ResponseWriter, r *http.Request, kind string, all map[string]described) {
	names := slices.Sorted(maps.Keys(all))
	skip, _ := strconv.Atoi(r.URL.Query().Get("$skip"))
	top, _ := strconv.Atoi(r.URL.Query().Get("$top"))
	names = names[min(skip, len(names)):]
	names = names[:min(top, len(names))]
	fmt.Fprint(w, `<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">`+kind+`</title>`)
	for _, name := range names {
		fmt.Fprintf(w, `<entry><title type="text">%s</title><content type="application/xml"><%s xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" `+
			`xmlns:i="http://www.w3.org/2001/XMLSchema-instance">`, name, kind)
		for _, element := range slices.Sorted(maps.Keys(all[name])) {
			fmt.Fprintf(w, "<%s>%s</%[1]s>", element, all[name][element])
		}
		fmt.Fprintf(w, "</%s></content></entry>", kind)
	}
	fmt.Fprint(w, `</feed>`)
}

// serveBus returns the URL of a namespace.
func serveBus(t *testing.T, f *fakeBus) string {
	t.Helper()
	at := httptest.NewServer(f)
	t.Cleanup(at.Close)
	t.Setenv("BUS_KEY", "c2VjcmV0/+c2VjcmV0==")
	return "servicebus://ops:${BUS_KEY}@shop.servicebus.windows.net?endpoint=" + url.QueryEscape(at.URL)
}

func TestSettingsOfQueuesOfServiceBus(t *testing.T) {
	for name, c := range map[string]struct {
		queue    described
		want     []string
		severity doctor.Severity
	}{
		"good":                   {busQueue, nil, ""},
		"few deliveries":         {busQueue.with("MaxDeliveryCount=10"), []string{"servicebus-delivery-limit"}, doctor.Warning},
		"messages end":           {busQueue.with("DeadLetteringOnMessageExpiration=false"), []string{"servicebus-expires"}, doctor.Warning},
		"messages end soon":      {busQueue.with("DeadLetteringOnMessageExpiration=false", "DefaultMessageTimeToLive=PT23H59M"), []string{"servicebus-expires"}, doctor.Unsafe},
		"dead letters soon":      {busQueue.with("DefaultMessageTimeToLive=PT1H"), []string{"servicebus-expires"}, doctor.Warning},
		"messages have no end":   {busQueue.with("DeadLetteringOnMessageExpiration=false", "DefaultMessageTimeToLive=P10675199DT2H48M5.4775807S"), nil, ""},
		"short locks":            {busQueue.with("LockDuration=PT5S"), []string{"servicebus-lock-duration"}, doctor.Warning},
		"no sessions":            {busQueue.with("RequiresSession=false"), []string{"servicebus-unordered"}, doctor.Note},
		"deleted":                {busQueue.with("AutoDeleteOnIdle=PT5M"), []string{"servicebus-deleted-when-idle"}, doctor.Unsafe},
		"disabled":               {busQueue.with("Status=ReceiveDisabled"), []string{"servicebus-disabled"}, doctor.Warning},
		"no duplicate detection": {busQueue.with("RequiresDuplicateDetection=false", "EnablePartitioning=true"), []string{"servicebus-no-duplicate-detection"}, doctor.Note},
		"partitioned":            {busQueue.with("EnablePartitioning=true"), []string{"servicebus-duplicates-apart"}, doctor.Warning},
		"short window":           {busQueue.with("DuplicateDetectionHistoryTimeWindow=PT20S"), []string{"servicebus-duplicate-window"}, doctor.Warning},
		"forwards":               {busQueue.with("ForwardTo=https://shop.servicebus.windows.net/Others", "MaxDeliveryCount=10"), nil, ""},
		"forwards nowhere":       {busQueue.with("ForwardTo=https://shop.servicebus.windows.net/gone"), []string{"servicebus-forward-missing"}, doctor.Unsafe},
		"dead letters nowhere":   {busQueue.with("ForwardDeadLetteredMessagesTo=gone"), []string{"servicebus-forward-missing"}, doctor.Unsafe},
		"no duration":            {busQueue.with("LockDuration=1 minute"), []string{"not-checked"}, doctor.Note},
	} {
		from := serveBus(t, &fakeBus{queues: map[string]described{"orders": c.queue, "others": busQueue}})
		r := wantFound(t, name, from, nil, "orders", c.want...)
		if len(c.want) == 1 && len(r.Findings) == 1 && r.Findings[0].Severity != c.severity {
			t.Errorf("%s is %s", name, r.Findings[0].Severity)
		}
	}
}

func TestSettingsOfTopicsOfServiceBus(t *testing.T) {
	for name, c := range map[string]struct {
		topic, subscription described
		want                []string
	}{
		"good":                   {busTopic, busSubscription, nil},
		"nobody":                 {busTopic, nil, []string{"servicebus-nobody-subscribes"}},
		"the topic's life":       {busTopic.with("DefaultMessageTimeToLive=P7D"), busSubscription, []string{"servicebus-expires"}},
		"its own life":           {busTopic.with("DefaultMessageTimeToLive=P14D"), busSubscription.with("DefaultMessageTimeToLive=P7D"), []string{"servicebus-expires"}},
		"dead letters":           {busTopic.with("DefaultMessageTimeToLive=P7D"), busSubscription.with("DeadLetteringOnMessageExpiration=true"), nil},
		"filter errors":          {busTopic, busSubscription.with("DeadLetteringOnFilterEvaluationExceptions=false"), []string{"servicebus-filter-errors"}},
		"partitioned":            {busTopic.with("EnablePartitioning=true"), busSubscription, []string{"servicebus-duplicates-apart"}},
		"no duplicate detection": {busTopic.with("RequiresDuplicateDetection=false"), busSubscription, []string{"servicebus-no-duplicate-detection"}},
		"disabled and deleted":   {busTopic.with("Status=SendDisabled", "AutoDeleteOnIdle=P1D"), busSubscription, []string{"servicebus-deleted-when-idle", "servicebus-disabled"}},
		"no order, few deliveries": {busTopic, busSubscription.with("RequiresSession=false", "MaxDeliveryCount=10"),
			[]string{"servicebus-unordered", "servicebus-delivery-limit"}},
	} {
		f := &fakeBus{topics: map[string]described{"shop/orders": c.topic}, subscriptions: map[string]map[string]described{"shop/orders": {}}}
		if c.subscription != nil {
			f.subscriptions["shop/orders"]["billing"] = c.subscription
		}
		wantFound(t, name, serveBus(t, f), nil, "", c.want...)
	}
}

func TestConsumersOfServiceBusAreCompared(t *testing.T) {
	f := &fakeBus{queues: map[string]described{"Orders": busQueue.with("LockDuration=PT5S")}, topics: map[string]described{"news": busTopic},
		subscriptions: map[string]map[string]described{"news": {"billing": busSubscription, "other": busSubscription.with("MaxDeliveryCount=10")}}}
	for i := range 200 { // so that they come in pages
		f.queues[fmt.Sprintf("other-%03d", i)] = busQueue.with("MaxDeliveryCount=10")
	}
	from := serveBus(t, f)
	for source, want := range map[string][]string{
		"servicebus queue orders":                           {"servicebus-lock-duration"}, // names have no case
		"servicebus queue other-199":                        {"servicebus-delivery-limit"},
		"servicebus queue news/billing":                     {"source-missing"},
		"servicebus subscription News/billing":              nil,
		"servicebus subscription news/other":                {"servicebus-delivery-limit"},
		"servicebus subscription news/gone":                 {"source-missing"},
		"servicebus subscription news/billing dead letters": nil,
	} {
		wantFound(t, source, from, withReader(t, source, nil, 0), "", want...)
	}
	for source, kept := range map[string]time.Duration{"servicebus queue other-001": 13 * 24 * time.Hour, "servicebus queue other-001 dead letters": 15 * 24 * time.Hour,
		"servicebus subscription news/other": 1000 * 24 * time.Hour} {
		r := wantFound(t, source+" with keys", from, withReader(t, source, nil, kept), "", "servicebus-delivery-limit", "redelivery-outlives-keys")
		if strings.Contains(fmt.Sprint(r.Findings), "will not start again") {
			t.Errorf("a consumer of Service Bus does not know what to compare: %+v", r.Findings)
		}
	}
	wantFound(t, "keys are kept", from, withReader(t, "servicebus queue other-001", nil, 15*24*time.Hour), "", "servicebus-delivery-limit")
	f.queues["orders"] = busQueue.with("ForwardTo=https://shop.servicebus.windows.net/other-001")
	delete(f.queues, "Orders")
	wantFound(t, "forwards", from, withReader(t, "servicebus queue orders", nil, 0), "", "servicebus-forwards")
	for only, want := range map[string][]string{"news": {"servicebus-delivery-limit"}, "news/b*": nil, "news/o*": {"servicebus-delivery-limit"}, "other-00?": {"servicebus-delivery-limit"}} {
		wantFound(t, only, from, nil, only, want...)
	}
	f.noTopics = true
	wantFound(t, "the basic tier", from, nil, "orders", "not-checked")
	f.denies = true
	r := wantFound(t, "denied", from, nil, "", "not-checked")
	if text := fmt.Sprint(r.Findings); strings.Contains(text, "c2VjcmV0") || !strings.Contains(text, "401 Unauthorized: Manage,EntityRead claims") {
		t.Errorf("%s shows the key, or does not say why", text)
	}
	for _, wrong := range []string{"servicebus://k:v@a,b", "servicebus://k@shop", "servicebus://k:v@shop/orders", "servicebus://k:v@shop?x=1", "servicebus://k:v@shop?endpoint=ftp://h",
		"servicebus://shop?endpoint=http://h"} {
		if _, err := doctor.Dial(t.Context(), wrong); !errors.Is(err, doctor.ErrBroker) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
