package fakesqs

import (
	"encoding/xml"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// The answers of SNS about topics and subscriptions. The mutex is held.

type attributeEntry struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func entries(attributes map[string]string) (list []attributeEntry) {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		list = append(list, attributeEntry{name, attributes[name]})
	}
	return list
}

// pending is what the service calls a subscription that is not confirmed.
const pending = "PendingConfirmation"

func (s *Server) listTopics() any {
	type member struct{ TopicArn string }
	var out struct {
		XMLName xml.Name `xml:"ListTopicsResponse"`
		Topics  []member `xml:"ListTopicsResult>Topics>member"`
	}
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		out.Topics = append(out.Topics, member{arnOf("sns", name)})
	}
	return out
}

func (s *Server) topicAttributes(form url.Values) (any, error) {
	t, err := s.findTopic(form)
	if err != nil {
		return nil, err
	}
	waiting := 0
	for _, to := range t.subscriptions {
		if to.attributes[pending] == "true" {
			waiting++
		}
	}
	a := map[string]string{"TopicArn": arnOf("sns", t.name), "Owner": Account, "SubscriptionsDeleted": "0",
		"SubscriptionsPending": strconv.Itoa(waiting), "SubscriptionsConfirmed": strconv.Itoa(len(t.subscriptions) - waiting)}
	if t.fifo() {
		a["FifoTopic"], a["ContentBasedDeduplication"] = "true", "false"
	}
	maps.Copy(a, t.attributes)
	var out struct {
		XMLName    xml.Name         `xml:"GetTopicAttributesResponse"`
		Attributes []attributeEntry `xml:"GetTopicAttributesResult>Attributes>entry"`
	}
	out.Attributes = entries(a)
	return out, nil
}

func subscriptionARN(t *topic, to subscription) string { return arnOf("sns", t.name) + ":" + to.queue }

func (s *Server) listSubscriptions(form url.Values) (any, error) {
	t, err := s.findTopic(form)
	if err != nil {
		return nil, err
	}
	type member struct{ SubscriptionArn, TopicArn, Owner, Protocol, Endpoint string }
	var out struct {
		XMLName       xml.Name `xml:"ListSubscriptionsByTopicResponse"`
		Subscriptions []member `xml:"ListSubscriptionsByTopicResult>Subscriptions>member"`
	}
	for _, to := range t.subscriptions {
		m := member{subscriptionARN(t, to), arnOf("sns", t.name), Account, "sqs", arnOf("sqs", to.queue)}
		if to.attributes[pending] == "true" {
			m.SubscriptionArn = pending
		}
		out.Subscriptions = append(out.Subscriptions, m)
	}
	return out, nil
}

func (s *Server) subscriptionAttributes(form url.Values) (any, error) {
	arn := form.Get("SubscriptionArn")
	for _, t := range s.topics {
		for _, to := range t.subscriptions {
			if arn != subscriptionARN(t, to) {
				continue
			}
			a := map[string]string{"SubscriptionArn": arn, "TopicArn": arnOf("sns", t.name), "Owner": Account, "Protocol": "sqs",
				"Endpoint": arnOf("sqs", to.queue), "RawMessageDelivery": strconv.FormatBool(to.raw), pending: "false"}
			maps.Copy(a, to.attributes)
			var out struct {
				XMLName    xml.Name         `xml:"GetSubscriptionAttributesResponse"`
				Attributes []attributeEntry `xml:"GetSubscriptionAttributesResult>Attributes>entry"`
			}
			out.Attributes = entries(a)
			return out, nil
		}
	}
	if strings.Count(arn, ":") < 6 {
		return nil, refuse("InvalidParameter", "Invalid parameter: SubscriptionArn")
	}
	return nil, refuse("NotFound", "Subscription does not exist")
}
