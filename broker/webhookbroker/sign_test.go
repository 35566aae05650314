package webhookbroker

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker"
	"github.com/effectively-once/once/internal/hook"
)

const (
	first  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	second = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
)

func keysOf(t *testing.T, secrets ...string) [][]byte {
	t.Helper()
	keys, err := hook.Secrets(secrets)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestVerify(t *testing.T) {
	body := []byte("1700000000.{}")
	signedBy := func(at time.Time, secrets ...string) http.Header {
		h := make(http.Header)
		hook.Sign(h, keysOf(t, secrets...), escape("order.7", '.'), body, at)
		return h
	}
	with := func(h http.Header, name, value string) http.Header { h.Set(name, value); return h }
	now := time.Now()
	sound := signedBy(now, first)
	for what, test := range map[string]struct {
		header  http.Header
		secrets []string
		body    string
		right   bool
	}{
		"as signed":           {sound, []string{first}, string(body), true},
		"the second secret":   {sound, []string{second, first}, string(body), true},
		"signed by two":       {signedBy(now, second, first), []string{first}, string(body), true},
		"other signatures":    {with(signedBy(now, first), hook.SignatureHeader, "v1a,xx v1,?? "+sound.Get(hook.SignatureHeader)), []string{first}, string(body), true},
		"no prefix":           {sound, []string{strings.TrimPrefix(first, "whsec_")}, string(body), true},
		"another secret":      {sound, []string{second}, string(body), false},
		"another body":        {sound, []string{first}, string(body) + " ", false},
		"another ID":          {with(signedBy(now, first), hook.IDHeader, "order%2E8"), []string{first}, string(body), false},
		"another time":        {with(signedBy(now, first), hook.TimeHeader, strconv.FormatInt(now.Unix()+1, 10)), []string{first}, string(body), false},
		"too old":             {signedBy(now.Add(-6*time.Minute), first), []string{first}, string(body), false},
		"nearly too old":      {signedBy(now.Add(-4*time.Minute), first), []string{first}, string(body), true},
		"too early":           {signedBy(now.Add(6*time.Minute), first), []string{first}, string(body), false},
		"no signature":        {with(signedBy(now, first), hook.SignatureHeader, ""), []string{first}, string(body), false},
		"an empty signature":  {with(signedBy(now, first), hook.SignatureHeader, "v1,"), []string{first}, string(body), false},
		"another version":     {with(signedBy(now, first), hook.SignatureHeader, strings.Replace(sound.Get(hook.SignatureHeader), "v1", "v2", 1)), []string{first}, string(body), false},
		"no headers":          {http.Header{}, []string{first}, string(body), false},
		"the body in the ID":  {with(sound.Clone(), hook.IDHeader, "order%2E7."+sound.Get(hook.TimeHeader)), []string{first}, "{}", false},
		"a flood of versions": {with(signedBy(now, first), hook.SignatureHeader, strings.Repeat("v1,AA== ", 32)+sound.Get(hook.SignatureHeader)), []string{first}, string(body), false},
	} {
		m, err := Verify(test.secrets, test.header, []byte(test.body), 0)
		switch {
		case test.right && (err != nil || m.ID != "order.7" || string(m.Body) != test.body):
			t.Errorf("%s: %+v, %v", what, m, err)
		case !test.right && (m != nil || !errors.Is(err, ErrUnverified)):
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
	if _, err := Verify(nil, sound, body, 0); !errors.Is(err, broker.ErrInvalid) {
		t.Errorf("without secrets: %v", err)
	}
	if _, err := Verify([]string{first}, signedBy(now.Add(-time.Hour), first), body, 2*time.Hour); err != nil {
		t.Errorf("within a longer tolerance: %v", err)
	}
}

// The signed text cannot be split into another ID and time, because an ID has
// no dots when it is sent.
func TestWhatIsSignedHasOneMeaning(t *testing.T) {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	body := now + ".{}"
	h := make(http.Header)
	hook.Sign(h, keysOf(t, first), "a", []byte(body), time.Unix(1600000000, 0))
	h.Set(hook.IDHeader, "a.1600000000")
	h.Set(hook.TimeHeader, now)
	if _, err := Verify([]string{first}, h, []byte("{}"), 0); !errors.Is(err, ErrUnverified) {
		t.Errorf("an old webhook was made a new one: %v", err)
	}
}

func TestEscape(t *testing.T) {
	for value, want := range map[string]string{"": "", "a~!": "a~!", " ": "%20", "\"%": "%22%25", "é": "%C3%A9", "€🜁": "%E2%82%AC%F0%9F%9C%81"} {
		if got := escape(value); got != want || unescape(got) != value {
			t.Errorf("%q: %q and back %q, want %q", value, got, unescape(got), want)
		}
	}
	for value, want := range map[string]string{"50%": "50%", "%2": "%2", "%zz": "%zz", "%c3%a9": "é", "%%41": "%A"} {
		if got := unescape(value); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-1": 0, "0": 0, "7": 7 * time.Second, "86400": longestRest, "99999999999999999999": 0,
		"Thu, 01 Jan 2026 00:00:09 GMT": 9 * time.Second, "Thu, 01 Jan 2025 00:00:09 GMT": 0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
