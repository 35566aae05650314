package webhookbroker

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

// ErrUnverified reports that the signature of a webhook is invalid, or that its
// timestamp is too far from now. Respond with 401.
var ErrUnverified = errors.New("webhookbroker: the webhook is not verified")

const defaultTolerance = 5 * time.Minute

// Verify checks the signature of a webhook and returns it as a message. The
// sender may be any that follows Standard Webhooks. Verify returns an
// [ErrUnverified] if no signature is valid for one of the secrets, or if the
// timestamp differs from now by more than the tolerance; 0 means 5 minutes. Any
// other error means that a secret is malformed.
//
// The body is the unchanged body of the request. A captured webhook can be sent
// again within the tolerance, so handle each ID once. Only the ID and the body
// are signed. Topic, OrderingKey, Time and Header are as trustworthy as the
// connection, and empty if the webhook is not a CloudEvent.
func Verify(secrets []string, h http.Header, body []byte, tolerance time.Duration) (*broker.Message, error) {
	return verify(secrets, h, body, cmp.Or(tolerance, defaultTolerance), time.Now())
}

func verify(secrets []string, h http.Header, body []byte, tolerance time.Duration, now time.Time) (*broker.Message, error) {
	keys, err := hook.Secrets(secrets)
	if err != nil {
		return nil, invalid("%v", err)
	}
	id, at := h.Get(hook.IDHeader), h.Get(hook.TimeHeader)
	if id == "" || strings.Contains(id, ".") { // a dot would make the signed text ambiguous
		return nil, fmt.Errorf("%w: the header %s is missing, or has a dot", ErrUnverified, hook.IDHeader)
	}
	sent, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: the header %s is not a number of seconds", ErrUnverified, hook.TimeHeader)
	}
	if age := now.Sub(time.Unix(sent, 0)); age > tolerance || age < -tolerance {
		return nil, fmt.Errorf("%w: it was sent %v ago, which is outside the tolerance of %v", ErrUnverified,
			age.Round(time.Second), tolerance)
	}
	if !hook.Signed(keys, id, at, body, h.Get(hook.SignatureHeader)) {
		return nil, fmt.Errorf("%w: no signature of %q is valid", ErrUnverified, id)
	}
	m := &broker.Message{ID: unescape(id), Body: body}
	unpack(h, m)
	return m, nil
}
