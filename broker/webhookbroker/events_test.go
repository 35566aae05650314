package webhookbroker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
)

const shared = "a shared secret of 16 bytes and more"

var key = []string{"X-Key", shared}

func TestAuthorization(t *testing.T) {
	const body = `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`
	kind := []string{"Content-Type", structuredType}
	byHeader := receiver(t, CloudEvents(HeaderSecret("X-Key", "the secret that is rolled", shared)), ReceiverOptions{})
	came := consume(t, byHeader)
	for what, test := range map[string]struct {
		header []string
		status int
	}{
		"the secret":          {[]string{"X-Key", shared}, 204},
		"the other":           {[]string{"X-Key", "the secret that is rolled"}, 204},
		"a bearer":            {[]string{"X-Key", "Bearer " + shared}, 204},
		"none":                {nil, 401},
		"empty":               {[]string{"X-Key", ""}, 401},
		"another":             {[]string{"X-Key", shared + "x"}, 401},
		"a prefix":            {[]string{"X-Key", shared[:len(shared)-1]}, 401},
		"twice":               {[]string{"X-Key", shared, "X-Key", shared}, 401},
		"in the wrong header": {[]string{"X-Other", shared}, 401},
	} {
		want(t, what, post(byHeader, body, append(test.header, kind...)...), test.status, came)
	}
	byQuery := receiver(t, CloudEvents(QuerySecret("code", "a-secret-for-urls-0")), ReceiverOptions{})
	came = consume(t, byQuery)
	for target, status := range map[string]int{"/?code=a-secret-for-urls-0": 204, "/?code=other": 401, "/": 401, "/?code=a-secret-for-urls-0&code=x": 401} {
		want(t, target, ask(byQuery, http.MethodPost, target, body, kind...), status, came)
	}
	byFunc := receiver(t, CloudEvents(AuthorizeFunc(func(r *http.Request) error { return unverified("no certificate") })), ReceiverOptions{})
	came = consume(t, byFunc)
	want(t, "a function", post(byFunc, body, kind...), 401, came)
}

func TestCloudEventsModes(t *testing.T) {
	rc := receiver(t, CloudEvents(HeaderSecret("X-Key", shared)), ReceiverOptions{MaxEvents: 3})
	came := consume(t, rc)
	wantEvent := func(what string, m *broker.Message, body string) {
		t.Helper()
		if m.ID != "/shop/1 a-1" || m.Topic != "order.paid" || m.OrderingKey != "7" || string(m.Body) != body ||
			m.Header["source"] != "/shop/1" || m.Header["tenant"] != "é 1" || m.Header["size"] != "12" && what != "binary" ||
			!m.Time.Equal(time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC)) {
			t.Errorf("%s: %+v %q", what, m, m.Body)
		}
	}
	m := want(t, "binary", post(rc, "\xff raw", append(key, "ce-specversion", "1.0", "ce-id", "a-1", "ce-source", "/shop/1", "ce-type", "order.paid",
		"ce-partitionkey", "7", "ce-time", "2026-02-03T04:05:06.000007Z", "ce-tenant", "%C3%A9%201", "Content-Type", "application/octet-stream")...), 204, came)
	wantEvent("binary", m, "\xff raw")
	if m.Header["content-type"] != "application/octet-stream" {
		t.Errorf("%+v", m)
	}
	structure := func(rest string) string {
		return `{"specversion":"1.0","id":"a-1","source":"/shop/1","type":"order.paid","partitionkey":"7","time":"2026-02-03T04:05:06.000007Z","tenant":"é 1","size":12` + rest + `}`
	}
	for members, body := range map[string]string{
		``:                      "",
		`,"data":{"order":  7}`: `{"order":  7}`,
		`,"datacontenttype":"application/json","data":"text"`:          `"text"`,
		`,"datacontenttype":"text/plain; charset=utf-8","data":"text"`: "text",
		`,"datacontenttype":"image/png","data_base64":"AP8="`:          "\x00\xff",
	} {
		m := want(t, members, post(rc, structure(members), append(key, "Content-Type", structuredType+"; charset=UTF-8")...), 204, came)
		wantEvent(members, m, body)
	}
	batch := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/s","type":"t"}`, i))
		}
		return "[" + strings.Join(all, ",") + "]\n"
	}
	batched := append(key, "Content-Type", batchType)
	want(t, "a batch", post(rc, batch(3), batched...), 204, came)
	for _, id := range []string{"/s 1", "/s 2"} {
		if m := <-came; m.ID != id {
			t.Errorf("%s came instead of %s", m.ID, id)
		}
	}
	if w := post(rc, "[]", batched...); w.Code != 204 {
		t.Errorf("an empty batch: %d", w.Code)
	}
	want(t, "a batch above MaxEvents", post(rc, batch(4), batched...), 413, came)
	for what, test := range map[string]struct {
		kind, body string
		status     int
	}{
		"no JSON":              {structuredType, "x", 400},
		"null":                 {structuredType, "null", 400},
		"two objects":          {structuredType, structure("") + structure(""), 400},
		"no source":            {structuredType, `{"specversion":"1.0","id":"1","type":"t"}`, 400},
		"a number as ID":       {structuredType, `{"specversion":"1.0","id":1,"source":"/s","type":"t"}`, 400},
		"another version":      {structuredType, `{"specversion":"0.3","id":"1","source":"/s","type":"t"}`, 400},
		"upper case":           {structuredType, structure(`,"Tenant":"x"`), 400},
		"a header of once":     {structuredType, structure(`,"once-key":"x"`), 400},
		"two kinds of data":    {structuredType, structure(`,"data":1,"data_base64":"AA=="`), 400},
		"no base64":            {structuredType, structure(`,"data_base64":"!"`), 400},
		"a control character":  {structuredType, structure(`,"a":"\u0000"`), 400},
		"a batch of one wrong": {batchType, `[{"specversion":"1.0","id":"1","source":"/s","type":"t"},{}]`, 400},
		"a batch without end":  {batchType, `[{"specversion":"1.0","id":"1","source":"/s","type":"t"}`, 400},
		"more after a batch":   {batchType, `[] {}`, 400},
		"rubbish after it":     {batchType, `[] x`, 400},
		"no batch":             {batchType, `{}`, 400},
		"a null in a batch":    {batchType, `[null]`, 400},
		"another format":       {"application/cloudevents+avro", "x", 415},
		"plain JSON":           {"application/json", "{}", 415},
		"no type":              {"", "{}", 415},
	} {
		want(t, what, post(rc, test.body, append(key, "Content-Type", test.kind)...), test.status, came)
	}
	want(t, "two IDs", post(rc, "", append(key, "ce-specversion", "1.0", "ce-id", "1", "ce-id", "2", "ce-source", "/s", "ce-type", "t")...), 400, came)
}

func TestIdentity(t *testing.T) {
	long := strings.Repeat("x", 250)
	seen := make(map[string]string)
	for _, pair := range [][2]string{{"/s", "1"}, {"/s 1", "2"}, {"/s", "1 2"}, {"", "1"}, {"/s1", "1"}, {"/s", "11"}, {long, "123456"},
		{long + "1", "23456"}, {"/s", "a\nb"}, {"12:/s", "1"}} {
		id := identity(pair[0], pair[1])
		if before, there := seen[id]; there {
			t.Errorf("%q and %q have the ID %q", pair, before, id)
		}
		seen[id] = fmt.Sprint(pair)
		if err := (&broker.Message{ID: id, Topic: "t"}).Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestHandshakeOfCloudEvents(t *testing.T) {
	rc := receiver(t, CloudEvents(HeaderSecret("X-Key", shared), "eventgrid.azure.net", "shop.example"), ReceiverOptions{})
	options := func(header ...string) (int, string) {
		w := ask(rc, http.MethodOptions, "/hooks", "", header...)
		return w.Code, w.Header().Get("WebHook-Allowed-Origin")
	}
	for what, test := range map[string]struct {
		header []string
		status int
		origin string
	}{
		"Event Grid":  {[]string{"WebHook-Request-Origin", "eventgrid.azure.net", "WebHook-Request-Rate", "120"}, 200, "eventgrid.azure.net"},
		"upper case":  {[]string{"WEBHOOK-REQUEST-ORIGIN", "Shop.example"}, 200, "Shop.example"},
		"a stranger":  {[]string{"WebHook-Request-Origin", "evil.example"}, 403, ""},
		"a suffix":    {[]string{"WebHook-Request-Origin", "notshop.example"}, 403, ""},
		"none":        {nil, 400, ""},
		"two of them": {[]string{"WebHook-Request-Origin", "shop.example", "WebHook-Request-Origin", "evil.example"}, 400, ""},
	} {
		if status, origin := options(test.header...); status != test.status || origin != test.origin {
			t.Errorf("%s: %d %q", what, status, origin)
		}
	}
	closed := receiver(t, CloudEvents(HeaderSecret("X-Key", shared)), ReceiverOptions{})
	if w := ask(closed, http.MethodOptions, "/", "", "WebHook-Request-Origin", "shop.example"); w.Code != 405 || w.Header().Get("Allow") != "POST" {
		t.Errorf("without origins: %d %v", w.Code, w.Header())
	}
	if w := ask(rc, http.MethodGet, "/", ""); w.Code != 405 || w.Header().Get("Allow") != "POST, OPTIONS" {
		t.Errorf("GET: %d %v", w.Code, w.Header())
	}
}

const (
	gridTopic  = "/subscriptions/5b4b650e-28b9-4790-b3ab-ddbd88d727c4/resourceGroups/shop/providers/Microsoft.EventGrid/topics/orders"
	validation = `[{"id":"2d1781af-3a4c-4d7c-bd0c-e34b19da4e66","topic":"` + gridTopic + `","subject":"","data":{"validationCode":"512d38b6-c7b8-40c8-89fe-f46f9e9622b6"},` +
		`"eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","eventTime":"2018-01-25T22:12:19.4556811Z","metadataVersion":"1","dataVersion":"1"}]`
)

func gridEvents(topic string, ids ...string) string {
	var all []string
	for _, id := range ids {
		all = append(all, fmt.Sprintf(`{"id":%q,"topic":%q,"subject":"orders/7","data":{"order": 7},"eventType":"Shop.OrderPaid","eventTime":"2026-02-03T04:05:06Z","dataVersion":"2","metadataVersion":"1"}`, id, topic))
	}
	return "[" + strings.Join(all, ",") + "]"
}

func TestEventGrid(t *testing.T) {
	rc := receiver(t, EventGrid(HeaderSecret("X-Key", shared), strings.ToLower(gridTopic)), ReceiverOptions{})
	came := consume(t, rc)
	w := post(rc, validation, "aeg-event-type", "SubscriptionValidation")
	var answer map[string]string
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 || answer["validationResponse"] != "512d38b6-c7b8-40c8-89fe-f46f9e9622b6" {
		t.Errorf("the handshake: %d %s", w.Code, w.Body)
	}
	for _, m := range rest(came) {
		t.Errorf("%+v came of a handshake", m)
	}
	want(t, "the handshake of a stranger", post(rc, strings.ReplaceAll(validation, "orders", "others"), key...), 401, came)
	want(t, "a handshake without a code", post(rc, strings.ReplaceAll(validation, "validationCode", "x"), key...), 400, came)
	m := want(t, "an event", post(rc, gridEvents(gridTopic, "1"), append(key, "aeg-event-type", "Notification", "aeg-delivery-count", "2")...), 200, came)
	if m.ID != identity(strings.ToLower(gridTopic), "1") || m.Topic != "Shop.OrderPaid" || string(m.Body) != `{"order": 7}` || m.Header["subject"] != "orders/7" ||
		m.Header["source"] != gridTopic || m.Header["dataversion"] != "2" || m.Header["deliveries"] != "2" || m.Time.Year() != 2026 {
		t.Errorf("%+v", m)
	}
	want(t, "a batch", post(rc, gridEvents(gridTopic, "2", "3"), key...), 200, came)
	if m := <-came; m.ID != identity(strings.ToLower(gridTopic), "3") {
		t.Errorf("%+v", m)
	}
	want(t, "no key", post(rc, gridEvents(gridTopic, "1")), 401, came)
	want(t, "another topic", post(rc, gridEvents(gridTopic+"x", "1"), key...), 401, came)
	want(t, "no array", post(rc, "{}", key...), 400, came)
	want(t, "no ID", post(rc, gridEvents(gridTopic, ""), key...), 400, came)
}

func rest(came <-chan *broker.Message) (ms []*broker.Message) {
	for {
		select {
		case m := <-came:
			ms = append(ms, m)
		default:
			return ms
		}
	}
}
