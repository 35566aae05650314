package webhookbroker

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

const validationEvent = "Microsoft.EventGrid.SubscriptionValidationEvent"

// EventGrid is the format of Azure Event Grid with its own schema, alone and in
// batches, as of https://learn.microsoft.com/azure/event-grid/event-schema. For
// subscriptions with the CloudEvents schema, use [CloudEvents] with the origin
// "eventgrid.azure.net".
//
// Event Grid does not sign: a decides who may send. Give the subscription a
// secret delivery property for [HeaderSecret], or a parameter of the URL for
// [QuerySecret]. The topics are the resource IDs from which events are expected,
// "/subscriptions/.../topics/orders". New subscriptions of these topics are
// confirmed, and events of other topics are refused with 401, which ends their
// delivery: Event Grid does not retry 400, 401, 403 and 413, but sends the event to
// the subscription's dead-letter destination, or drops it if there is none.
//
// The ID of a message is the topic in lower case, a space and the id of the
// event; its topic is the eventType, and its body the data. The headers
// "subject", "source", "dataversion" and "deliveries" have the rest; deliveries
// is the number of earlier ones, as Event Grid counts. Copies of an event are
// compared by their data alone, without regard to spaces and the order of
// members.
func EventGrid(a Authorization, topics ...string) Format {
	if len(topics) == 0 {
		return Format{wrong: invalid("EventGrid needs a topic: without one, anybody's subscription would be confirmed")}
	}
	return Format{wrong: a.invalid(), success: http.StatusOK, input: dataInput, parse: func(in *incoming) (received, error) {
		all, err := parseArray(in.body, in.options.MaxEvents)
		if err != nil {
			return received{}, err
		}
		// A confirmation needs no authorization. It tells a stranger nothing that
		// was not in the request, and Event Grid promises its delivery properties
		// for events only.
		if code, ok := validationOf(all, topics); ok {
			return received{answer: func(w http.ResponseWriter) {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(map[string]string{"validationResponse": code}) // or the sender has gone
			}}, nil
		}
		if err := a.check(in.Request); err != nil {
			return received{}, err
		}
		var got received
		for _, o := range all {
			m, err := gridEvent(o, topics)
			if err != nil {
				return received{}, err
			}
			if n, err := strconv.ParseUint(in.Header.Get("aeg-delivery-count"), 10, 16); err == nil {
				m.Header["deliveries"] = strconv.FormatUint(n, 10)
			}
			got.messages = append(got.messages, m)
		}
		return got, nil
	}}
}

// validationOf returns the code of a request that asks to confirm a
// subscription.
func validationOf(all []object, topics []string) (code string, ok bool) {
	if len(all) != 1 || all[0].text("eventType") != validationEvent || !isOneOf(topics, all[0].text("topic")) {
		return "", false
	}
	var data struct{ ValidationCode string }
	if json.Unmarshal(all[0]["data"], &data) != nil || data.ValidationCode == "" {
		return "", false
	}
	return data.ValidationCode, true
}

// isOneOf ignores case, as resource IDs do.
func isOneOf(topics []string, topic string) bool {
	return slices.ContainsFunc(topics, func(known string) bool { return strings.EqualFold(known, topic) })
}

func gridEvent(o object, topics []string) (*broker.Message, error) {
	m := &broker.Message{Header: map[string]string{contentType: "application/json"}}
	topic, err := o.mustText("topic")
	if err != nil {
		return nil, err
	}
	if !isOneOf(topics, topic) {
		return nil, unverified("an event is of the topic %.200q, which is not one of those expected", topic)
	}
	id, err := o.mustText("id")
	if err != nil {
		return nil, err
	}
	if m.Topic, err = o.mustText("eventType"); err != nil {
		return nil, err
	}
	if m.Topic == validationEvent {
		return nil, invalid("a validation event is not alone, or has no code")
	}
	m.ID = identity(strings.ToLower(topic), id)
	m.Time, _ = time.Parse(time.RFC3339, o.text("eventTime"))
	m.Body = o["data"]
	m.Header["source"] = topic
	for header, member := range map[string]string{"subject": "subject", "dataversion": "dataVersion"} {
		if value := o.text(member); value != "" {
			m.Header[header] = value
		}
	}
	return m, nil
}
