package once_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var logTable = regexp.MustCompile("(?m)^\\| (debug|info|warn|error) \\| `([^`]+)` \\|")

// docs/observing.md lists every message that is logged, and no other.
func TestLogMessagesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, m := range logTable.FindAllStringSubmatch(string(text), -1) {
		listed[m[1]+" "+m[2]] = true
	}
	said := make(map[string]bool)
	eachFile(t, func(file, dir string, test bool) {
		if room, _, _ := strings.Cut(dir, "/"); test || room == "integration" || room == "bench" || room == "examples" || room == "cmd" {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				for _, message := range logged(t, file, dir, call) {
					said[message] = true
				}
			}
			return true
		})
	})
	if len(said) < 40 {
		t.Errorf("only %d messages were found: the test reads the wrong files", len(said))
	}
	for message := range said {
		if !listed[message] {
			t.Errorf("docs/observing.md does not list what is logged as %q", message)
		}
	}
	for message := range listed {
		if !said[message] {
			t.Errorf("docs/observing.md lists %q, which nothing logs", message)
		}
	}
}

// logged returns the level and the message of a call that logs. Messages that
// pass through a function are found at its calls.
func logged(t *testing.T, file, dir string, call *ast.CallExpr) []string {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return nil
	}
	level, contexted := strings.CutSuffix(strings.ToLower(selector.Sel.Name), "context")
	at, prefix := 0, ""
	switch {
	case level == "debug" || level == "info" || level == "warn" || level == "error":
		if contexted {
			at = 1
		}
	case level == "persist" && dir == "outbox":
		level, at = "warn", 1
	case level == "log" && dir == "httponce":
		level, prefix = "error", "httponce: "
	default:
		return nil
	}
	literal, ok := call.Args[at].(*ast.BasicLit)
	if !ok {
		through := []string{"outbox/env.go", "httponce/exchange.go"}
		if contexted && file != through[0] && file != through[1] {
			t.Errorf("%s logs something whose message this test cannot read", file)
		}
		return nil
	}
	message, err := strconv.Unquote(literal.Value)
	if err != nil {
		return nil
	}
	return []string{level + " " + prefix + message}
}
