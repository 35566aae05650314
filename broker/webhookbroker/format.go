package webhookbroker

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/name"
)

// Format is what the requests of a sender look like: how they are verified, and
// what their messages are. It is returned by [StandardWebhooks], [Stripe],
// [GitHub], [CloudEvents], [EventGrid], [SNS] and [Custom].
type Format struct {
	wrong     error // why no receiver can use it
	success   int   // the status of handled requests
	parse     func(*incoming) (received, error)
	input     func(*broker.Message) []byte                                      // what its sender repeats unchanged; nil: the body
	handshake func(*http.Request) (answer func(http.ResponseWriter), err error) // of OPTIONS; nil: none
}

// incoming is a request whose body was read.
type incoming struct {
	*http.Request
	body    []byte
	now     time.Time
	options ReceiverOptions
}

// received is what a request contains: messages, or something that the format
// answers itself.
type received struct {
	messages []*broker.Message
	answer   func(http.ResponseWriter)
}

func one(m *broker.Message) received { return received{messages: []*broker.Message{m}} }

func unverified(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnverified, fmt.Sprintf(format, args...))
}

// Authorization decides whether a request of a format without signatures comes
// from the expected sender. It is returned by [HeaderSecret], [QuerySecret] and
// [AuthorizeFunc].
type Authorization struct {
	wrong error
	check func(*http.Request) error
}

// HeaderSecret authorizes requests that have one of the secrets in a header,
// after "Bearer " or alone. Give two while a sender changes from one to the
// other.
func HeaderSecret(header string, secrets ...string) Authorization {
	return secretIn(secrets, func(r *http.Request) (string, error) {
		value, err := single(r.Header, header)
		return strings.TrimPrefix(value, "Bearer "), err
	})
}

// QuerySecret authorizes requests that have one of the secrets in a parameter of
// the URL. Event Grid hides the URLs of its endpoints, but logs of proxies may
// not: prefer a header.
func QuerySecret(parameter string, secrets ...string) Authorization {
	return secretIn(secrets, func(r *http.Request) (string, error) {
		values := r.URL.Query()[parameter]
		if len(values) != 1 {
			return "", unverified("the parameter %q occurs %d times", parameter, len(values))
		}
		return values[0], nil
	})
}

// AuthorizeFunc authorizes requests for which check returns nil, for example
// after it has verified a token or a client certificate. It returns an
// [ErrUnverified] for a 401; any other error is a 503. It must not read the
// body.
func AuthorizeFunc(check func(*http.Request) error) Authorization {
	return Authorization{check: check}
}

func secretIn(secrets []string, find func(*http.Request) (string, error)) Authorization {
	if err := checkSecrets(secrets); err != nil {
		return Authorization{wrong: err}
	}
	return Authorization{check: func(r *http.Request) error {
		given, err := find(r)
		if err != nil {
			return err
		}
		known := 0
		for _, s := range secrets {
			a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(s)) // which hides the length
			known |= subtle.ConstantTimeCompare(a[:], b[:])
		}
		if known == 0 {
			return unverified("the secret of the request is none of the %d known ones", len(secrets))
		}
		return nil
	}}
}

// invalid returns why a format cannot use the authorization, or nil.
func (a Authorization) invalid() error {
	if a.wrong == nil && a.check == nil {
		return invalid("there is no Authorization: the format has no signatures, so anybody could send messages")
	}
	return a.wrong
}

// Custom is a format of one's own. parse verifies a request and returns its
// messages, each with the ID that its sender gives it in all retries. The body
// is the unchanged body of the request; r.Body is empty. parse returns an
// [ErrUnverified] for a 401, and a [broker.ErrInvalid] for a 400; any other
// error is a 503.
//
// Compare signatures with [hmac.Equal].
func Custom(parse func(r *http.Request, body []byte) ([]*broker.Message, error)) Format {
	if parse == nil {
		return Format{wrong: invalid("Custom needs a function")}
	}
	return Format{success: http.StatusNoContent, parse: func(in *incoming) (received, error) {
		ms, err := parse(in.Request, in.body)
		if err != nil {
			return received{}, err
		}
		return received{messages: ms}, nil
	}}
}

// single returns the value of a header that must occur once. With two values,
// what is verified and what is used could differ.
func single(h http.Header, header string) (string, error) {
	values := h.Values(header)
	if len(values) != 1 || values[0] == "" {
		return "", unverified("the header %s occurs %d times, or is empty", header, len(values))
	}
	return values[0], nil
}

// inTime checks the time of sending, in seconds since 1970.
func (in *incoming) inTime(text string) error {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return unverified("the time of sending is not a number of seconds")
	}
	age := in.now.Sub(time.Unix(seconds, 0))
	if age > in.options.Tolerance || age < -in.options.Tolerance {
		return unverified("it was sent %v ago, which is outside the tolerance of %v", age.Round(time.Second), in.options.Tolerance)
	}
	return nil
}

// signedHex reports whether one of the signatures, in hexadecimal, is the
// HMAC-SHA256 of the parts with one of the secrets.
func signedHex(secrets []string, signatures []string, parts ...[]byte) bool {
	valid := false
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		for _, part := range parts {
			mac.Write(part)
		}
		sum := mac.Sum(nil)
		for _, signature := range signatures {
			given, err := hex.DecodeString(signature)
			valid = err == nil && hmac.Equal(given, sum) || valid
		}
	}
	return valid
}

// leastSecret is the length of the shortest secret. It is that of 64 random bits
// in hexadecimal: whoever has one signed request can try out anything shorter at
// home.
const leastSecret = 16

// checkSecrets returns an error for secrets that could be guessed. It does not
// show them.
func checkSecrets(secrets []string) error {
	if len(secrets) == 0 {
		return invalid("there is no secret")
	}
	for i, secret := range secrets {
		if len(secret) < leastSecret { // an empty one would let everybody in
			return invalid("secret %d of %d has %d bytes, which can be guessed: give it at least %d, such as those of "+
				"\"openssl rand -hex 32\"", i+1, len(secrets), len(secret), leastSecret)
		}
	}
	return nil
}

// isJSON reports whether a media type is JSON.
func isJSON(mediaType string) bool {
	return mediaType == "application/json" || mediaType == "text/json" || strings.HasSuffix(mediaType, "+json")
}

func mediaType(h http.Header) string {
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type")) // empty if it cannot be read
	return kind
}

// identity returns the ID of a message whose sender gives it an ID that is
// unique within its source. A source without spaces ends at the first one, so
// that no two pairs have the same ID. Pairs that are no valid ID are hashed; a
// hash has no space.
func identity(source, id string) string {
	joined := source + " " + id
	if source != "" && id != "" && !strings.Contains(source, " ") && name.Check("ID", joined) == nil {
		return joined
	}
	sum := sha256.Sum256([]byte(strconv.Itoa(len(source)) + ":" + source + id))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// object is a JSON object. Unlike fields of a struct, its names are
// case-sensitive.
type object map[string]json.RawMessage

// parseObject parses one object and nothing after it.
func parseObject(text []byte) (object, error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil || o == nil {
		return nil, invalid("the body is not a JSON object")
	}
	return o, nil
}

// parseArray parses an array of objects. A longer one than limit is refused
// before its elements are parsed.
func parseArray(text []byte, limit int) ([]object, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, invalid("the body is not a JSON array")
	}
	var all []object
	for d.More() {
		if len(all) == limit {
			return nil, refuse(http.StatusRequestEntityTooLarge, "the request has more than %d events, which is MaxEvents", limit)
		}
		var o object
		if err := d.Decode(&o); err != nil || o == nil {
			return nil, invalid("event %d of the body is not a JSON object", len(all)+1)
		}
		all = append(all, o)
	}
	if _, err := d.Token(); err != nil {
		return nil, invalid("the JSON array of the body does not end")
	}
	if _, err := d.Token(); err == nil || d.InputOffset() < int64(len(bytes.TrimRight(text, " \t\r\n"))) {
		return nil, invalid("the body goes on after its JSON array")
	}
	return all, nil
}

// text returns a member that is a string, or "".
func (o object) text(member string) string {
	var s string
	if raw, ok := o[member]; !ok || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// mustText returns a member that must be a string that is not empty.
func (o object) mustText(member string) (string, error) {
	s := o.text(member)
	if s == "" {
		return "", invalid("an event has no %q that is a string", member)
	}
	return s, nil
}
