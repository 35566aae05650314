package webhookbroker

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	snsTopic = "arn:aws:sns:us-west-2:123456789012:orders"
	snsCert  = "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem"
)

// snsDouble signs messages as SNS does, and answers requests to its hosts.
type snsDouble struct {
	key *rsa.PrivateKey
	pem []byte

	mu     sync.Mutex
	asked  []string
	status int   // of answers; 0: 200
	err    error // instead of answers
}

func newSNSDouble(tb testing.TB) *snsDouble {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sns.amazonaws.com"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	return &snsDouble{key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (d *snsDouble) do(r *http.Request) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, r.URL.String())
	if d.err != nil {
		return nil, &url.Error{Op: "Get", URL: r.URL.String(), Err: d.err}
	}
	status := 200
	if d.status != 0 {
		status = d.status
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(bytes.NewReader(d.pem))}, nil
}

func (d *snsDouble) requests() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nil
	return asked
}

type members map[string]string

func (m members) with(pairs ...string) members {
	c := make(members)
	for name, value := range m {
		c[name] = value
	}
	for i := 0; i < len(pairs); i += 2 {
		c[pairs[i]] = pairs[i+1]
	}
	return c
}

func (m members) without(name string) members {
	c := m.with()
	delete(c, name)
	return c
}

// sign returns the message in JSON. The signed text is written here once more,
// as the documentation lists it.
func (d *snsDouble) sign(tb testing.TB, m members) string {
	tb.Helper()
	order := "Message MessageId Subject Timestamp TopicArn Type"
	if m["Type"] != "Notification" {
		order = "Message MessageId SubscribeURL Timestamp Token TopicArn Type"
	}
	var text string
	for _, name := range strings.Fields(order) {
		if value, ok := m[name]; ok {
			text += name + "\n" + value + "\n"
		}
	}
	var signature []byte
	var err error
	if m["SignatureVersion"] == "2" {
		sum := sha256.Sum256([]byte(text))
		signature, err = rsa.SignPKCS1v15(nil, d.key, crypto.SHA256, sum[:])
	} else {
		sum := sha1.Sum([]byte(text))
		signature, err = rsa.SignPKCS1v15(nil, d.key, crypto.SHA1, sum[:])
	}
	if err != nil {
		tb.Fatal(err)
	}
	return m.with("Signature", base64.StdEncoding.EncodeToString(signature)).json(tb)
}

func (m members) json(tb testing.TB) string {
	tb.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

func notification(version string) members {
	return members{"Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", "TopicArn": snsTopic,
		"Subject": "My \"First\" Message", "Message": "Hello\nworld!", "Timestamp": time.Now().UTC().Format("2006-01-02T15:04:05.000Z"),
		"SignatureVersion": version, "SigningCertURL": snsCert,
		"UnsubscribeURL": "https://sns.us-west-2.amazonaws.com/?Action=Unsubscribe"}
}

func TestSNSNotifications(t *testing.T) {
	d := newSNSDouble(t)
	rc := receiver(t, snsFormat([]string{"arn:aws:sns:us-west-2:123456789012:other", snsTopic}, d.do), ReceiverOptions{})
	came := consume(t, rc)
	at := func(age time.Duration) string { return time.Now().Add(-age).UTC().Format(time.RFC3339) }
	other := newSNSDouble(t)
	tampered := func(pairs ...string) string {
		var m members
		if err := json.Unmarshal([]byte(d.sign(t, notification("2"))), &m); err != nil {
			t.Fatal(err)
		}
		return m.with(pairs...).json(t)
	}
	for what, test := range map[string]struct {
		body   string
		status int
	}{
		"version 1":                {d.sign(t, notification("1")), 200},
		"version 2":                {d.sign(t, notification("2")), 200},
		"without a subject":        {d.sign(t, notification("2").without("Subject")), 200},
		"of last week":             {d.sign(t, notification("2").with("Timestamp", at(6*24*time.Hour))), 200},
		"another key":              {other.sign(t, notification("2")), 401},
		"version 3":                {d.sign(t, notification("3")), 401},
		"version 2 of version 1":   {strings.Replace(d.sign(t, notification("1")), `"SignatureVersion":"1"`, `"SignatureVersion":"2"`, 1), 401},
		"another message":          {tampered("Message", "Hello"), 401},
		"another ID":               {tampered("MessageId", "2"), 401},
		"another subject":          {tampered("Subject", "x"), 401},
		"another expected topic":   {tampered("TopicArn", "arn:aws:sns:us-west-2:123456789012:other"), 401},
		"a topic of somebody else": {d.sign(t, notification("2").with("TopicArn", "arn:aws:sns:us-west-2:999999999999:orders")), 401},
		"no signature":             {notification("2").json(t), 401},
		"an empty signature":       {tampered("Signature", ""), 401},
		"of last month":            {d.sign(t, notification("2").with("Timestamp", at(30*24*time.Hour))), 401},
		"of tomorrow":              {d.sign(t, notification("2").with("Timestamp", at(-24*time.Hour))), 401},
		"without a time":           {d.sign(t, notification("2").with("Timestamp", "")), 401},
		"another type":             {d.sign(t, notification("2").with("Type", "Other")), 400},
		"no JSON":                  {"x", 400},
	} {
		m := want(t, what, post(rc, test.body, "Content-Type", "text/plain; charset=UTF-8"), test.status, came)
		if test.status == 200 && (m.ID != "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324" || m.Topic != snsTopic || string(m.Body) != "Hello\nworld!" || m.Time.IsZero()) {
			t.Errorf("%s: %+v", what, m)
		}
	}
	if asked := d.requests(); len(asked) != 1 || asked[0] != snsCert {
		t.Errorf("the certificate was fetched so: %q", asked)
	}
}

// A certificate from anywhere else would let anybody sign.
func TestSNSCertificatesComeFromSNS(t *testing.T) {
	d := newSNSDouble(t)
	rc := receiver(t, snsFormat([]string{snsTopic}, d.do), ReceiverOptions{})
	came := consume(t, rc)
	const path = "/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem"
	for from, status := range map[string]int{
		"https://sns.us-gov-west-1.amazonaws.com" + path:             200,
		"https://sns.cn-north-1.amazonaws.com.cn" + path:             200,
		"http://sns.us-west-2.amazonaws.com" + path:                  401,
		"https://sns.us-west-2.amazonaws.com.evil.example" + path:    401,
		"https://evil.example/sns.us-west-2.amazonaws.com" + path:    401,
		"https://evil.example" + path:                                401,
		"https://sns.us-west-2.amazonaws.com@evil.example" + path:    401,
		"https://x.sns.us-west-2.amazonaws.com" + path:               401,
		"https://snsxus-west-2.amazonaws.com" + path:                 401,
		"https://sns.us-west-2.amazonaws.com:8443" + path:            401,
		"https://bucket.s3.amazonaws.com" + path:                     401,
		"https://sns.s3-us-west-2.amazonaws.com" + path:              401, // a bucket called sns
		"https://sns.s3-accelerate.amazonaws.com" + path:             401,
		"https://sns.us-west-2.amazonaws.com/?Action=Get&x=a.pem":    401,
		"https://sns.us-west-2.amazonaws.com" + path + "?Action=Get": 401,
		"https://sns.us-west-2.amazonaws.com/x" + path:               401,
		"//sns.us-west-2.amazonaws.com" + path:                       401,
		"":                                                           401,
	} {
		want(t, from, post(rc, d.sign(t, notification("2").with("SigningCertURL", from))), status, came)
		if asked := d.requests(); (len(asked) > 0) != (status == 200) {
			t.Errorf("%s: fetched %q", from, asked)
		}
	}
}

func TestSNSCertificateThatCannotBeFetchedIsARetry(t *testing.T) {
	d := newSNSDouble(t)
	rc := receiver(t, snsFormat([]string{snsTopic}, d.do), ReceiverOptions{})
	came := consume(t, rc)
	d.err = errors.New("no route")
	want(t, "no connection", post(rc, d.sign(t, notification("2"))), 503, came)
	d.err, d.status = nil, 500
	want(t, "500", post(rc, d.sign(t, notification("2"))), 503, came)
	d.status = 302
	want(t, "302", post(rc, d.sign(t, notification("2"))), 503, came)
	d.status = 0
	sound := d.pem
	d.pem = []byte("<html>")
	want(t, "no certificate", post(rc, d.sign(t, notification("2"))), 503, came)
	d.pem = sound
	want(t, "in the end", post(rc, d.sign(t, notification("2"))), 200, came)
}

func TestSNSConfirmation(t *testing.T) {
	d := newSNSDouble(t)
	rc := receiver(t, snsFormat([]string{snsTopic}, d.do), ReceiverOptions{})
	confirmURL := func(host, topic string) string {
		return host + "/?Action=ConfirmSubscription&TopicArn=" + topic + "&Token=2336412f37"
	}
	const host = "https://sns.us-west-2.amazonaws.com"
	good := confirmURL(host, snsTopic)
	confirmation := members{"Type": "SubscriptionConfirmation", "MessageId": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b", "Token": "2336412f37",
		"TopicArn": snsTopic, "Message": "You have chosen to subscribe", "SubscribeURL": good, "Timestamp": time.Now().UTC().Format(time.RFC3339),
		"SignatureVersion": "1", "SigningCertURL": snsCert}
	for what, test := range map[string]struct {
		body   string
		status int
		asked  bool
	}{
		"as SNS sends it":    {d.sign(t, confirmation), 200, true},
		"unsigned":           {confirmation.json(t), 401, false},
		"another topic":      {d.sign(t, confirmation.with("TopicArn", "arn:aws:sns:us-west-2:1:x")), 401, false},
		"a URL of another":   {d.sign(t, confirmation.with("SubscribeURL", confirmURL(host, "arn:aws:sns:us-west-2:1:x"))), 401, false},
		"another region":     {d.sign(t, confirmation.with("SubscribeURL", confirmURL("https://sns.us-east-1.amazonaws.com", snsTopic))), 401, false},
		"another host":       {d.sign(t, confirmation.with("SubscribeURL", confirmURL("https://evil.example", snsTopic))), 401, false},
		"another action":     {d.sign(t, confirmation.with("SubscribeURL", strings.Replace(good, "Confirm", "Delete", 1))), 401, false},
		"end of subcription": {d.sign(t, confirmation.with("Type", "UnsubscribeConfirmation")), 200, false},
	} {
		if w := post(rc, test.body); w.Code != test.status {
			t.Errorf("%s: %d, want %d", what, w.Code, test.status)
		}
		confirmed := false
		for _, asked := range d.requests() {
			confirmed = confirmed || asked == good
			if asked != good && asked != snsCert {
				t.Errorf("%s: asked %s", what, asked)
			}
		}
		if confirmed != test.asked {
			t.Errorf("%s: confirmed: %v", what, confirmed)
		}
	}
	d.status = 500
	if w := post(rc, d.sign(t, confirmation)); w.Code != 503 {
		t.Errorf("a confirmation that fails: %d", w.Code)
	}
}
