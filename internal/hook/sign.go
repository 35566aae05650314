package hook

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
)

// These are the headers of Standard Webhooks.
const (
	IDHeader        = "webhook-id"
	TimeHeader      = "webhook-timestamp"
	SignatureHeader = "webhook-signature"
)

const (
	secretPrefix  = "whsec_"
	version       = "v1,"
	leastSecret   = 24
	maxSecret     = 64
	maxSignatures = 32 // of one request: more are no rotation
)

// Secrets parses secrets. Its errors do not show them.
func Secrets(texts []string) (secrets [][]byte, err error) {
	if len(texts) == 0 {
		return nil, errors.New("there is no secret")
	}
	for i, text := range texts {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, secretPrefix))
		if err != nil || len(secret) < leastSecret || len(secret) > maxSecret {
			return nil, fmt.Errorf("secret %d of %d is not %s and %d to %d random bytes in base64", i+1, len(texts),
				secretPrefix, leastSecret, maxSecret)
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}

// Sign signs a body with each secret. id must not contain a dot, which separates
// the signed parts.
func Sign(h http.Header, secrets [][]byte, id string, body []byte, now time.Time) {
	at := strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		signatures[i] = version + base64.StdEncoding.EncodeToString(sign(secret, id, at, body))
	}
	h.Set(IDHeader, id)
	h.Set(TimeHeader, at)
	h.Set(SignatureHeader, strings.Join(signatures, " "))
}

// Signed reports whether one of the signatures was made with one of the
// secrets.
func Signed(secrets [][]byte, id, at string, body []byte, signatures string) bool {
	given := strings.Fields(signatures)
	for _, signature := range given[:min(len(given), maxSignatures)] {
		text, ok := strings.CutPrefix(signature, version)
		mac, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil {
			continue
		}
		for _, secret := range secrets {
			if hmac.Equal(mac, sign(secret, id, at, body)) {
				return true
			}
		}
	}
	return false
}

func sign(secret []byte, id, at string, body []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	return mac.Sum(nil)
}
