package hook

import (
	"encoding/base64"
	"strings"
	"testing"
)

// The signature is the one that the library of Standard Webhooks makes.
func TestSignatureIsTheStandardOne(t *testing.T) {
	secrets, err := Secrets([]string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	if err != nil {
		t.Fatal(err)
	}
	mac := sign(secrets[0], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if got := base64.StdEncoding.EncodeToString(mac); got != "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
}

// A URL that is refused, and an answer that repeats it, show the host and nothing else.
func TestPathsStaySecret(t *testing.T) {
	for _, text := range []string{"ftp://h/hunter2", "https://u:hunter2@h/", "http://h/hunter2", "https://h/%zzhunter2", "https:hunter2", ""} {
		if _, err := NewPlace(text, false); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
	to, err := NewPlace("https://h/hooks/hunter2?token=hunter2", false)
	if err != nil {
		t.Fatal(err)
	}
	if got := to.Excerpt(strings.NewReader(" no route for /hooks/hunter2?token=hunter2\n")); got != ": no route for ..." {
		t.Error(got)
	}
	to, err = NewPlace("https://h/hooks/T0hunter2hunter2?token=hunter2%2F&to=a", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"no route":"\/hooks\/T0hunter2hunter2"}`, "GET /hooks/T0hunter2hunter2?token=hunter2%2F&amp;to=a",
		"the hook T0hunter2hunter2 is gone", "hunter2/ is no token"} {
		if got := to.Excerpt(strings.NewReader(text)); strings.Contains(got, "hunter2") || !strings.Contains(got, "...") {
			t.Error(got)
		}
	}
	if got := to.Excerpt(strings.NewReader("there are no hooks")); got != ": there are no hooks" {
		t.Error(got)
	}
}
