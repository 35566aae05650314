package webhookbroker

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
)

// ErrUnverified says that a webhook is not from who has the secret, or that it is too old: answer 401.
var ErrUnverified = errors.New("webhookbroker: the webhook is not verified")

const (
	idHeader        = "webhook-id"
	timeHeader      = "webhook-timestamp"
	signatureHeader = "webhook-signature"

	secretPrefix     = "whsec_"
	version          = "v1,"
	leastSecret      = 24
	mostSecret       = 64
	mostSignatures   = 32 // of one webhook: more are no rotation
	defaultTolerance = 5 * time.Minute
)

// Verify checks a webhook by the secrets that its sender may have signed it with, and returns it as a message. The sender
// may be any that keeps to Standard Webhooks. It is an [ErrUnverified] if no signature is right, or if it was sent longer
// ago, or later, than the tolerance; 0 is 5 minutes. Another error says that a secret is wrong.
//
// The body is that of the request, byte for byte. Who captures a webhook can send it again within the tolerance: handle
// each ID once. Only the ID and the body are signed; Topic, OrderingKey, Time and Header are as trustworthy as the
// connection, and empty if the webhook is no CloudEvent.
func Verify(secrets []string, h http.Header, body []byte, tolerance time.Duration) (*broker.Message, error) {
	keys, err := parseSecrets(secrets)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if tolerance == 0 {
		tolerance = defaultTolerance
	}
	id, at := h.Get(idHeader), h.Get(timeHeader)
	if id == "" || strings.Contains(id, ".") { // with a dot, what is signed could be read in two ways
		return nil, fmt.Errorf("%w: the header %s is missing, or has a dot", ErrUnverified, idHeader)
	}
	sent, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: the header %s is no number of seconds", ErrUnverified, timeHeader)
	}
	if age := time.Since(time.Unix(sent, 0)); age > tolerance || age < -tolerance {
		return nil, fmt.Errorf("%w: it was sent %v ago, by the clocks of both sides, which is more than %v", ErrUnverified,
			age.Round(time.Second), tolerance)
	}
	if !signed(keys, id, at, body, h.Get(signatureHeader)) {
		return nil, fmt.Errorf("%w: no signature of %q is right", ErrUnverified, id)
	}
	m := &broker.Message{ID: unescape(id), Body: body}
	unpack(h, m)
	return m, nil
}

func signed(keys [][]byte, id, at string, body []byte, signatures string) bool {
	given := strings.Fields(signatures)
	for _, signature := range given[:min(len(given), mostSignatures)] {
		text, ok := strings.CutPrefix(signature, version)
		mac, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil {
			continue
		}
		for _, key := range keys {
			if hmac.Equal(mac, sign(key, id, at, body)) {
				return true
			}
		}
	}
	return false
}

func sign(key []byte, id, at string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

// stamp signs a message, with each secret.
func stamp(h http.Header, secrets [][]byte, m *broker.Message, now time.Time) {
	id, at := escape(m.ID, '.'), strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		signatures[i] = version + base64.StdEncoding.EncodeToString(sign(secret, id, at, m.Body))
	}
	h.Set(idHeader, id)
	h.Set(timeHeader, at)
	h.Set(signatureHeader, strings.Join(signatures, " "))
}

// parseSecrets reads secrets. Its errors do not show them.
func parseSecrets(texts []string) (secrets [][]byte, err error) {
	if len(texts) == 0 {
		return nil, errors.New("there is no secret")
	}
	for i, text := range texts {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, secretPrefix))
		if err != nil || len(secret) < leastSecret || len(secret) > mostSecret {
			return nil, fmt.Errorf("secret %d of %d is not %s and %d to %d random bytes in base64", i+1, len(texts),
				secretPrefix, leastSecret, mostSecret)
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}
