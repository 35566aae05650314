package docs

import (
	"encoding/json"
	"errors"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once/broker/webhookbroker"
)

// hook is the request that docs/webhooks.md shows, with the secret that it names.
type hook struct {
	Secret  string            `json:"secret"`
	Headers map[string]string `json:"headers"` // with names in lower case
	Body    string            `json:"body"`
	Old     bool              `json:"old"` // with the tolerance that the receiver has by itself, which the example is beyond
}

// receiversDir contains the receivers in other languages.
const receiversDir = root + "/examples/webhooks"

// receivers call the code of the examples with their standard input and print
// the ID, or why the request is rejected.
var receivers = map[string][]string{
	"Python": {"python3", "-B", "-c", `
import json, sys
from verify import verify
hook = json.load(sys.stdin)
more = {} if hook["old"] else {"tolerance": 10**10}
try:
    print("taken", verify(hook["secret"], hook["headers"], hook["body"].encode(), **more))
except (ValueError, KeyError) as e:
    print("refused", e)
`},
	"PHP": {"php", "-r", `
require 'verify.php';
$hook = json_decode(stream_get_contents(STDIN), true);
foreach ($hook['headers'] as $name => $value) {
    $_SERVER['HTTP_' . strtoupper(strtr($name, '-', '_'))] = $value;
}
try {
    $id = $hook['old'] ? verify($hook['secret'], $hook['body']) : verify($hook['secret'], $hook['body'], 10 ** 10);
    echo "taken $id\n";
} catch (RuntimeException $e) {
    echo 'refused ', $e->getMessage(), "\n";
}
`},
}

// shownHook returns the request and the secret shown on the page.
func shownHook(t *testing.T) (h hook) {
	t.Helper()
	page := read(t, root+"/docs/webhooks.md")
	_, rest, found := strings.Cut(page, "`whsec_")
	for ; found && len(h.Secret) < 32; _, rest, found = strings.Cut(rest, "`whsec_") {
		h.Secret, _, _ = strings.Cut("whsec_"+rest, "`")
	}
	all, err := fencesOf("docs/webhooks.md", page)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(f fence) bool { return f.kind == "http" })
	if at < 0 {
		t.Fatal("docs/webhooks.md shows no request")
	}
	head, body, found := strings.Cut(strings.Join(all[at].text, "\n"), "\n\n")
	if !found || len(h.Secret) < 32 {
		t.Fatal("docs/webhooks.md has no request, or no secret of it")
	}
	h.Headers, h.Body = make(map[string]string), body
	for _, line := range strings.Split(head, "\n")[1:] {
		name, value, _ := strings.Cut(line, ": ")
		h.Headers[strings.ToLower(name)] = value
	}
	return h
}

// TestReceiversOfOtherLanguages sends the request that the page shows, and
// damaged ones, to each receiver.
func TestReceiversOfOtherLanguages(t *testing.T) {
	right := shownHook(t)
	with := func(name, value string) hook {
		h := right
		h.Headers = map[string]string{name: value}
		for n, v := range right.Headers {
			if n != name {
				h.Headers[n] = v
			}
		}
		return h
	}
	signature := right.Headers["webhook-signature"]
	body, secret, old := right, right, right
	body.Body, secret.Secret, old.Old = "{}", "whsec_AAAA9r8GKYqrTwjUPD8ILPZIo2LaLaSw", true
	cases := map[string]struct {
		hook
		taken bool
	}{
		"right":                   {right, true},
		"two signatures":          {with("webhook-signature", "v1,AAAA "+signature), true},
		"another body":            {body, false},
		"another secret":          {secret, false},
		"old":                     {old, false},
		"another ID":              {with("webhook-id", "1"), false},
		"a dot in the ID":         {with("webhook-id", "0198c2f0.5f3e"), false},
		"another time":            {with("webhook-timestamp", "1770087907"), false},
		"another signature":       {with("webhook-signature", "v1,AAAA"), false},
		"another version of it":   {with("webhook-signature", strings.Replace(signature, "v1", "v2", 1)), false},
		"no signature":            {with("webhook-signature", ""), false},
		"a letter in a signature": {with("webhook-signature", strings.ToLower(signature)), false},
	}
	for name, c := range cases {
		if _, err := webhookbroker.Verify([]string{c.Secret}, header(c.Headers), []byte(c.Body), tolerance(c.Old)); (err == nil) != c.taken {
			t.Errorf("in Go, %s: %v", name, err)
		}
	}
	for language, program := range receivers {
		t.Run(language, func(t *testing.T) {
			if exec.Command(program[0], "--version").Run() != nil {
				t.Skipf("needs %s", program[0])
			}
			for name, c := range cases {
				input, err := json.Marshal(c.hook)
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(program[0], program[1:]...)
				cmd.Dir = receiversDir
				cmd.Stdin = strings.NewReader(string(input))
				out, err := cmd.Output()
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					t.Fatalf("%s: %v: %s", name, err, exit.Stderr)
				}
				want := "refused the webhook has "
				if c.taken {
					want = "taken " + right.Headers["webhook-id"]
				}
				if !strings.HasPrefix(string(out), want) {
					t.Errorf("%s: %q %v, want %q", name, out, err, want)
				}
			}
		})
	}
}

func header(of map[string]string) http.Header {
	h := make(http.Header)
	for name, value := range of {
		h.Set(name, value)
	}
	return h
}

func tolerance(old bool) time.Duration {
	if old {
		return 0 // the default
	}
	return 100 * 365 * 24 * time.Hour
}
