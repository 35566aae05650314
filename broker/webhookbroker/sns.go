package webhookbroker

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/effectively-once/once/broker"
)

// SNS is the format of Amazon SNS, as of
// https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html,
// with raw message delivery off, because raw messages have no signature.
// Signatures of version 1 (SHA-1) and 2 (SHA-256) are accepted. Their
// certificates are fetched from sns.<region>.amazonaws.com only, over https, and
// kept for a day.
//
// The topics are the ARNs from which messages are expected. Subscriptions of
// these topics are confirmed, over a URL of the same host, and messages of other
// topics are refused.
//
// The ID of a message is the MessageId, which is the same in all retries; its
// topic is the TopicArn, and its body the Message. A Subject is the header
// "subject". SNS signs the time of publishing and not of sending, so Tolerance
// does not apply: messages older than 7 days are refused. SNS retries after a 503
// and gives up after most 4xx.
func SNS(topics ...string) Format {
	client := &http.Client{
		Timeout:       5 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return snsFormat(topics, client.Do)
}

const (
	snsMaxAge   = 7 * 24 * time.Hour // less than how long keys are kept by default
	snsKeyAge   = 24 * time.Hour
	snsMaxKeys  = 16 // of regions, during a rotation
	snsMaxReply = 64 << 10
)

// snsHost and snsPath are the URLs of certificates. A host with anything else than
// a region could be a bucket that is called sns, as in
// sns.s3-us-west-2.amazonaws.com. An unchecked path could be an action of the SNS
// API whose response repeats text of a stranger.
var (
	snsHost = regexp.MustCompile(`^sns\.[a-z]{2,4}(-[a-z]+){1,3}-[0-9]{1,2}\.amazonaws\.com(\.cn)?$`)
	snsPath = regexp.MustCompile(`^/SimpleNotificationService-[0-9A-Za-z]{8,64}\.pem$`)
)

func snsFormat(topics []string, do func(*http.Request) (*http.Response, error)) Format {
	if len(topics) == 0 {
		return Format{wrong: invalid("SNS needs the ARN of a topic: anybody can create topics whose messages are signed")}
	}
	s := &sns{topics: topics, do: do, keys: make(map[string]snsKey)}
	return Format{success: http.StatusOK, parse: s.parse}
}

type sns struct {
	topics []string
	do     func(*http.Request) (*http.Response, error)

	mu   sync.Mutex
	keys map[string]snsKey // by URL
}

type snsKey struct {
	key     *rsa.PublicKey
	fetched time.Time
}

func (s *sns) parse(in *incoming) (received, error) {
	o, err := parseObject(in.body)
	if err != nil {
		return received{}, err
	}
	// The list comes before the certificate, so that strangers cause no requests.
	if topic := o.text("TopicArn"); !slices.Contains(s.topics, topic) {
		return received{}, unverified("the topic %.200q is not one of those expected", topic)
	}
	if err := s.verify(in, o); err != nil {
		return received{}, err
	}
	at, err := time.Parse(time.RFC3339, o.text("Timestamp"))
	if age := in.now.Sub(at); err != nil || age > snsMaxAge || age < -in.options.Tolerance {
		return received{}, unverified("the message was published at %.40q, which is too long ago or in the future", o.text("Timestamp"))
	}
	switch o.text("Type") {
	case "Notification":
		m := &broker.Message{Topic: o.text("TopicArn"), Time: at, Body: []byte(o.text("Message"))}
		if m.ID, err = o.mustText("MessageId"); err != nil {
			return received{}, err
		}
		if subject := o.text("Subject"); subject != "" {
			m.Header = map[string]string{"subject": subject}
		}
		return one(m), nil
	case "SubscriptionConfirmation":
		return received{answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }}, s.confirm(in.Context(), o)
	}
	// UnsubscribeConfirmation: the URL in it would subscribe again.
	return received{answer: func(w http.ResponseWriter) { w.WriteHeader(http.StatusOK) }}, nil
}

// signedMembers are the members that are signed, in order, by Type.
var signedMembers = map[string][]string{
	"Notification":             {"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"},
	"SubscriptionConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
	"UnsubscribeConfirmation":  {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

func (s *sns) verify(in *incoming, o object) error {
	members := signedMembers[o.text("Type")]
	if members == nil {
		return invalid("the Type of the SNS message is %.40q", o.text("Type"))
	}
	signature, err := base64.StdEncoding.DecodeString(o.text("Signature"))
	if err != nil || len(signature) == 0 {
		return unverified("the SNS message has no Signature in base64")
	}
	var signed strings.Builder
	for _, member := range members {
		if _, there := o[member]; there || member != "Subject" { // Subject is the only optional one
			if member == "Subject" && string(o[member]) == "null" {
				continue
			}
			signed.WriteString(member + "\n" + o.text(member) + "\n")
		}
	}
	key, err := s.key(in.Context(), o.text("SigningCertURL"), in.now)
	if err != nil {
		return err
	}
	switch version := o.text("SignatureVersion"); version {
	case "1":
		sum := sha1.Sum([]byte(signed.String()))
		err = rsa.VerifyPKCS1v15(key, crypto.SHA1, sum[:], signature)
	case "2":
		sum := sha256.Sum256([]byte(signed.String()))
		err = rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature)
	default:
		return unverified("the SignatureVersion of the SNS message is %.10q", version)
	}
	if err != nil {
		return unverified("the Signature of the SNS message is not valid")
	}
	return nil
}

// snsURL parses a URL of the SNS service.
func snsURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Fragment != "" || !snsHost.MatchString(u.Host) {
		return nil, unverified("a URL of the SNS message is not one of https://sns.<region>.amazonaws.com")
	}
	return u, nil
}

// key returns the public key of the certificate at a URL. Its host vouches for
// it, by TLS, so the certificate's own issuer and times are not checked.
func (s *sns) key(ctx context.Context, text string, now time.Time) (*rsa.PublicKey, error) {
	u, err := snsURL(text)
	if err != nil {
		return nil, err
	}
	if !snsPath.MatchString(u.EscapedPath()) || u.RawQuery != "" {
		return nil, unverified("the SigningCertURL of the SNS message is not the path of a certificate")
	}
	s.mu.Lock()
	known, ok := s.keys[u.String()]
	s.mu.Unlock()
	if ok && now.Sub(known.fetched) < snsKeyAge {
		return known.key, nil
	}
	text, err = s.get(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("webhookbroker: the certificate of SNS could not be fetched: %w", err)
	}
	key, err := rsaKey([]byte(text))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) >= snsMaxKeys {
		clear(s.keys)
	}
	s.keys[u.String()] = snsKey{key, now}
	return key, nil
}

func rsaKey(text []byte) (*rsa.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("webhookbroker: the certificate of SNS is not in PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("webhookbroker: the certificate of SNS could not be parsed: %w", err)
	}
	key, ok := certificate.PublicKey.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("webhookbroker: the certificate of SNS has no RSA key")
	}
	return key, nil
}

// confirm confirms a subscription whose signature is valid and whose topic is
// expected.
func (s *sns) confirm(ctx context.Context, o object) error {
	u, err := snsURL(o.text("SubscribeURL"))
	if err != nil {
		return err
	}
	signing, err := snsURL(o.text("SigningCertURL"))
	q := u.Query()
	if err != nil || u.Host != signing.Host || q.Get("Action") != "ConfirmSubscription" || q.Get("TopicArn") != o.text("TopicArn") {
		return unverified("the SubscribeURL is of another host or topic than the message")
	}
	if _, err := s.get(ctx, u); err != nil {
		return fmt.Errorf("webhookbroker: the subscription to SNS could not be confirmed: %w", err)
	}
	return nil
}

func (s *sns) get(ctx context.Context, u *url.URL) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", err
	}
	answer, err := s.do(r)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) { // its text has the token of the URL
			err = failed.Err
		}
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, snsMaxReply))
	if err != nil {
		return "", err
	}
	if answer.StatusCode/100 != 2 {
		return "", fmt.Errorf("%s answered %d", u.Host, answer.StatusCode)
	}
	return string(body), nil
}
