package webhookbroker

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

// ErrUnverified says that a webhook is not from who has the secret, or that it is too old: answer 401.
var ErrUnverified = errors.New("webhookbroker: the webhook is not verified")

const defaultTolerance = 5 * time.Minute

// Verify checks a webhook by the secrets that its sender may have signed it with, and returns it as a message. The sender
// may be any that keeps to Standard Webhooks. It is an [ErrUnverified] if no signature is right, or if it was sent longer
// ago, or later, than the tolerance; 0 is 5 minutes. Another error says that a secret is wrong.
//
// The body is that of the request, byte for byte. Who captures a webhook can send it again within the tolerance: handle
// each ID once. Only the ID and the body are signed; Topic, OrderingKey, Time and Header are as trustworthy as the
// connection, and empty if the webhook is no CloudEvent.
func Verify(secrets []string, h http.Header, body []byte, tolerance time.Duration) (*broker.Message, error) {
	keys, err := hook.Secrets(secrets)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if tolerance == 0 {
		tolerance = defaultTolerance
	}
	id, at := h.Get(hook.IDHeader), h.Get(hook.TimeHeader)
	if id == "" || strings.Contains(id, ".") { // with a dot, what is signed could be read in two ways
		return nil, fmt.Errorf("%w: the header %s is missing, or has a dot", ErrUnverified, hook.IDHeader)
	}
	sent, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: the header %s is no number of seconds", ErrUnverified, hook.TimeHeader)
	}
	if age := time.Since(time.Unix(sent, 0)); age > tolerance || age < -tolerance {
		return nil, fmt.Errorf("%w: it was sent %v ago, by the clocks of both sides, which is more than %v", ErrUnverified,
			age.Round(time.Second), tolerance)
	}
	if !hook.Signed(keys, id, at, body, h.Get(hook.SignatureHeader)) {
		return nil, fmt.Errorf("%w: no signature of %q is right", ErrUnverified, id)
	}
	m := &broker.Message{ID: unescape(id), Body: body}
	unpack(h, m)
	return m, nil
}
