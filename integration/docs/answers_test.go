package docs

import (
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/effectively-once/once/broker/webhookbroker"
)

// receiver calls examples/webhooks/outcome.py for each request on its standard
// input, with charges in all states.
const receiver = `
import json, sys
import outcome, verify
outcome.verify = lambda *args: verify.verify(*args, tolerance=10**10)

class Charges:
    def __init__(self, state): self.state = state
    def find(self, idempotency_key):
        if self.state == "away": raise OSError("the database is away")
        return None if self.state == "none" else {"state": self.state, "result": {"charge": "ch_99"}}

for line in sys.stdin:
    asked = json.loads(line)
    status, body = outcome.outcome(asked["secret"], asked["headers"], asked["body"].encode(), Charges(asked["state"]))
    print(status, body)
`

// TestAnswersOfOtherLanguages sends the question shown in docs/asking.md to the
// receiver in Python.
func TestAnswersOfOtherLanguages(t *testing.T) {
	page := read(t, root+"/docs/asking.md")
	_, rest, found := strings.Cut(page, "this one with `")
	secret, _, _ := strings.Cut(rest, "`")
	all, err := fencesOf("docs/asking.md", page)
	if err != nil || !found {
		t.Fatal("docs/asking.md has no secret, or", err)
	}
	blocks := make(map[string]string)
	for _, f := range all {
		blocks[f.kind] = strings.Join(f.text, "\n")
	}
	head, body, _ := strings.Cut(blocks["http"], "\n\n")
	headers := make(map[string]string)
	for _, line := range strings.Split(head, "\n")[1:] {
		name, value, _ := strings.Cut(line, ": ")
		headers[strings.ToLower(name)] = value
	}
	if _, err := webhookbroker.Verify([]string{secret}, header(headers), []byte(body), tolerance(false)); err != nil {
		t.Errorf("the question that is shown: %v", err)
	}
	if exec.Command("python3", "--version").Run() != nil {
		t.Skip("needs python3")
	}
	var input, want strings.Builder
	say := func(state, body, answer string) {
		line, err := json.Marshal(map[string]any{"secret": secret, "headers": headers, "body": body, "state": state})
		if err != nil {
			t.Fatal(err)
		}
		input.Write(append(line, '\n'))
		want.WriteString(answer + "\n")
	}
	const key = `200 {"key": "18c4d8cc-b43c-84e0-b355-dd79e8ff02f1", "answer": `
	say("captured", body, key+`"done", "result": {"charge": "ch_99"}}`)
	say("declined", body, key+`"rejected", "result": {"charge": "ch_99"}}`)
	say("authorized", body, key+`"pending"}`)
	say("none", body, key+`"not_found"}`)
	say("away", body, key+`"unknown"}`)
	say("captured", body+" ", "401 ")
	cmd := exec.Command("python3", "-B", "-c", receiver)
	cmd.Dir = receiversDir
	cmd.Stdin = strings.NewReader(input.String())
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%v: %s", err, exit.Stderr)
	}
	if string(out) != want.String() {
		t.Errorf("it answers\n%s, want\n%s", out, want.String())
	}
}
