package webhookbroker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

const (
	structuredType = "application/cloudevents+json"
	batchType      = "application/cloudevents-batch+json"
)

// CloudEvents is the format of CloudEvents 1.0 over HTTP, in binary, structured
// and batched mode, as of
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md.
// CloudEvents have no signatures: a decides who may send.
//
// The origins are the senders that may ask for permission, by the OPTIONS
// request of
// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/http-webhook.md#4-abuse-protection,
// such as "eventgrid.azure.net". Without origins, none may. The permission is no
// secret and needs no authorization. For Event Grid, which sends the OPTIONS
// request to the same URL, route all methods to the receiver.
//
// The ID of a message is the source of the event, a space and its id, because
// two sources may use the same id. If that is not a valid ID of a message, it is
// a hash of both. The topic is the type, the ordering key the partitionkey, and
// the body the data. All other attributes are headers. Copies of an event are
// compared by their data alone, and if it is JSON, without regard to spaces and
// the order of members.
func CloudEvents(a Authorization, origins ...string) Format {
	f := Format{wrong: a.invalid(), success: http.StatusNoContent, input: dataInput, parse: func(in *incoming) (received, error) {
		if err := a.check(in.Request); err != nil {
			return received{}, err
		}
		return parseCloudEvents(in)
	}}
	if len(origins) > 0 {
		f.handshake = func(r *http.Request) (func(http.ResponseWriter), error) { return allowOrigin(r, origins) }
	}
	return f
}

// allowOrigin permits a sender to deliver. A refused one gets no header, which is
// what the specification asks for.
func allowOrigin(r *http.Request, origins []string) (func(http.ResponseWriter), error) {
	origin, err := single(r.Header, "WebHook-Request-Origin")
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the OPTIONS request names no origin, or several")
	}
	if !slices.ContainsFunc(origins, func(known string) bool { return strings.EqualFold(known, origin) }) {
		return nil, refuse(http.StatusForbidden, "the origin %.80q may not send", origin)
	}
	return func(w http.ResponseWriter) {
		w.Header().Set("WebHook-Allowed-Origin", origin)
		w.Header().Set("WebHook-Allowed-Rate", "*") // the receiver answers 503 to what is too much
		w.Header().Set("Allow", "POST, OPTIONS")
		w.WriteHeader(http.StatusOK)
	}, nil
}

func parseCloudEvents(in *incoming) (received, error) {
	switch kind := mediaType(in.Header); {
	case kind == batchType:
		all, err := parseArray(in.body, in.options.MaxEvents)
		if err != nil {
			return received{}, err
		}
		var got received
		for i, o := range all {
			m, err := structured(o)
			if err != nil {
				return received{}, fmt.Errorf("event %d of the batch: %w", i+1, err)
			}
			got.messages = append(got.messages, m)
		}
		return got, nil
	case kind == structuredType:
		o, err := parseObject(in.body)
		if err != nil {
			return received{}, err
		}
		m, err := structured(o)
		if err != nil {
			return received{}, err
		}
		return one(m), nil
	case strings.HasPrefix(kind, "application/cloudevents"), in.Header.Get(attribute+"specversion") == "":
		return received{}, refuse(http.StatusUnsupportedMediaType, "the Content-Type %.80q is none of CloudEvents, and there is no ce-specversion", kind)
	}
	m, err := binaryEvent(in)
	if err != nil {
		return received{}, err
	}
	return one(m), nil
}

// binaryEvent parses an event whose attributes are headers.
func binaryEvent(in *incoming) (*broker.Message, error) {
	must := make(map[string]string)
	for _, name := range []string{"specversion", "id", "source", "type"} {
		values := in.Header.Values(attribute + name)
		if len(values) != 1 || values[0] == "" {
			return nil, invalid("the header ce-%s occurs %d times, or is empty", name, len(values))
		}
		must[name] = unescape(values[0])
	}
	if must["specversion"] != "1.0" {
		return nil, invalid("the version of the CloudEvent is %.20q: only 1.0 is known", must["specversion"])
	}
	m := &broker.Message{ID: identity(must["source"], must["id"]), Body: in.body}
	unpack(in.Header, m)
	if m.Header == nil {
		m.Header = make(map[string]string)
	}
	m.Header["source"] = must["source"]
	return m, nil
}

// structured parses an event in JSON. Its data becomes the body: the text of a
// string if the content is not JSON, and otherwise the JSON itself, unchanged.
func structured(o object) (*broker.Message, error) {
	if version := o.text("specversion"); version != "1.0" {
		return nil, invalid("the version of the CloudEvent is %.20q: only 1.0 is known", version)
	}
	m := &broker.Message{OrderingKey: o.text("partitionkey"), Header: make(map[string]string)}
	id, err := o.mustText("id")
	if err != nil {
		return nil, err
	}
	source, err := o.mustText("source")
	if err != nil {
		return nil, err
	}
	if m.Topic, err = o.mustText("type"); err != nil {
		return nil, err
	}
	m.ID = identity(source, id)
	m.Header["source"] = source
	m.Time, _ = time.Parse(time.RFC3339, o.text("time")) // zero if it is missing
	if kind := o.text("datacontenttype"); kind != "" {
		m.Header[contentType] = kind
	}
	for name, raw := range o {
		switch {
		case own[name] || name == "data_base64":
		case name == gridHeaders && addHeaders(m.Header, plainText(raw)):
		case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "": // not a header of once's own, either
			return nil, invalid("the CloudEvent has a member %.40q: names are lower-case letters and digits", name)
		default:
			m.Header[name] = plainText(raw)
		}
	}
	if m.Body, err = data(o); err != nil {
		return nil, err
	}
	return m, nil
}

// addHeaders adds the headers of a message that NewEventGrid has published. It
// returns false if the text is something else.
func addHeaders(h map[string]string, text string) bool {
	var others map[string]string
	if json.Unmarshal([]byte(text), &others) != nil {
		return false
	}
	for name, value := range others {
		if name != "source" { // which is that of the event
			h[name] = value
		}
	}
	dropFields(h)
	return true
}

// plainText returns the value of an attribute: strings without their quotes,
// numbers and booleans as they are.
func plainText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func data(o object) ([]byte, error) {
	raw, text := o["data"], o["data_base64"]
	switch {
	case raw != nil && text != nil:
		return nil, invalid("the CloudEvent has data and data_base64")
	case text != nil:
		body, err := base64.StdEncoding.DecodeString(o.text("data_base64"))
		if err != nil {
			return nil, invalid("the data_base64 of the CloudEvent is not base64")
		}
		return body, nil
	}
	kind, _, _ := strings.Cut(o.text("datacontenttype"), ";")
	if kind = strings.ToLower(strings.TrimSpace(kind)); kind == "" || isJSON(kind) {
		return raw, nil
	}
	return []byte(plainText(raw)), nil
}
