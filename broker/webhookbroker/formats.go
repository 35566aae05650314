package webhookbroker

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

// StandardWebhooks is the format of https://www.standardwebhooks.com, and of
// [New]: a message that once has published arrives as it was put. The secrets are
// as in [Endpoint]. Give two while the sender changes from one to the other.
//
// The ID of a message is the webhook-id, and its body is the body of the request.
// The rest comes from the headers of a CloudEvent, if there are any, which are
// not signed. The topic of other requests is the member "type" of the body, or
// "webhook".
func StandardWebhooks(secrets ...string) Format {
	if _, err := hook.Secrets(secrets); err != nil {
		return Format{wrong: invalid("%v", err)}
	}
	return Format{success: http.StatusNoContent, parse: func(in *incoming) (received, error) {
		for _, header := range []string{hook.IDHeader, hook.TimeHeader, hook.SignatureHeader} {
			if _, err := single(in.Header, header); err != nil {
				return received{}, err
			}
		}
		m, err := verify(secrets, in.Header, in.body, in.options.Tolerance, in.now)
		if err != nil {
			return received{}, err
		}
		if m.Topic == "" {
			if o, err := parseObject(in.body); err == nil {
				m.Topic = o.text("type")
			}
		}
		if m.Topic == "" {
			m.Topic = "webhook"
		}
		return one(m), nil
	}}
}

// Stripe is the format of Stripe's webhooks, and of those that sign like it. The
// secrets are those of the endpoint, "whsec_...", as Stripe shows them. While
// one is rolled, Stripe signs with both, so either is enough.
//
// The ID of a message is the ID of the event, which is the same in all retries;
// its topic is the type, and its body the whole event. Copies of an event are
// compared without the pending_webhooks, which Stripe changes between attempts.
// Stripe may make two events of one change: for those, set the Key of the
// consumer to the ID of the object and the type, and its Input to what both have
// in common. See https://docs.stripe.com/webhooks#verify-manually.
func Stripe(secrets ...string) Format {
	if err := checkSecrets(secrets); err != nil {
		return Format{wrong: err}
	}
	return Format{success: http.StatusOK, input: stripeInput, parse: func(in *incoming) (received, error) {
		header, err := single(in.Header, "Stripe-Signature")
		if err != nil {
			return received{}, err
		}
		at, signatures, err := stripeSignatures(header)
		if err != nil {
			return received{}, err
		}
		if !signedHex(secrets, signatures, []byte(at+"."), in.body) {
			return received{}, unverified("no signature of Stripe is valid")
		}
		if err := in.inTime(at); err != nil {
			return received{}, err
		}
		return stripeEvent(in.body)
	}}
}

const maxSignatures = 32 // of one request: more are no rotation

// stripeSignatures parses "t=1492774577,v1=5257...,v0=6ffb...". Only v1 counts:
// v0 is for test events.
func stripeSignatures(header string) (at string, signatures []string, err error) {
	for part := range strings.SplitSeq(header, ",") {
		scheme, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case scheme == "t" && at != "":
			return "", nil, unverified("the signature has two times")
		case scheme == "t":
			at = value
		case scheme == "v1":
			signatures = append(signatures, value)
		}
	}
	if at == "" || len(signatures) == 0 || len(signatures) > maxSignatures {
		return "", nil, unverified("the header has a time and %d signatures of v1, or no time", len(signatures))
	}
	return at, signatures, nil
}

func stripeEvent(body []byte) (received, error) {
	o, err := parseObject(body)
	if err != nil {
		return received{}, err
	}
	m := &broker.Message{Body: body, Header: map[string]string{contentType: "application/json"}}
	if m.ID, err = o.mustText("id"); err != nil {
		return received{}, err
	}
	if m.Topic, err = o.mustText("type"); err != nil {
		return received{}, err
	}
	var seconds int64
	if json.Unmarshal(o["created"], &seconds) == nil && seconds > 0 {
		m.Time = time.Unix(seconds, 0)
	} else { // events of version 2 have a text
		m.Time, _ = time.Parse(time.RFC3339, o.text("created"))
	}
	return one(m), nil
}

// GitHub is the format of GitHub's webhooks with the content type
// application/json. Give two secrets while you change from one to the other.
//
// The ID of a message is X-GitHub-Delivery, which is the same if the delivery is
// repeated; its topic is X-GitHub-Event. Only the body is signed, without a time:
// somebody who captured a request can repeat its body under another ID. If that
// matters, set the Key of the consumer to something in the body. GitHub does not
// retry by itself: a failed delivery must be repeated by a person or a program.
// See https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries.
func GitHub(secrets ...string) Format {
	if err := checkSecrets(secrets); err != nil {
		return Format{wrong: err}
	}
	return Format{success: http.StatusOK, parse: func(in *incoming) (received, error) {
		header, err := single(in.Header, "X-Hub-Signature-256")
		if err != nil {
			return received{}, err
		}
		signature, ok := strings.CutPrefix(header, "sha256=")
		if !ok || !signedHex(secrets, []string{signature}, in.body) {
			return received{}, unverified("the signature of GitHub is not valid")
		}
		if !isJSON(mediaType(in.Header)) {
			return received{}, refuse(http.StatusUnsupportedMediaType, "the Content-Type is not application/json: change it in the settings of the webhook")
		}
		m := &broker.Message{Body: in.body, Header: map[string]string{contentType: "application/json"}}
		if m.ID, err = single(in.Header, "X-GitHub-Delivery"); err != nil {
			return received{}, err
		}
		if m.Topic, err = single(in.Header, "X-GitHub-Event"); err != nil {
			return received{}, err
		}
		return one(m), nil
	}}
}
