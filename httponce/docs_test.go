package httponce

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestEachProblemIsDocumented compares the types of problems with the page that
// they link to. It has a heading and the status for each.
func TestEachProblemIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/http-problems.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Problems\n")
	documented := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^### (\S+)\n\n\*\*(\d{3})\b`).FindAllStringSubmatch(section, -1) {
		documented[m[1]] = m[2]
	}
	problems := problemsOf(t, "problem.go")
	if len(problems) == 0 {
		t.Fatal("no problems were found in problem.go")
	}
	for name, status := range problems {
		if documented[name] != status {
			t.Errorf("%s of %s: docs/http-problems.md has %q", name, status, documented[name])
		}
	}
	if headings := strings.Count(section, "\n### "); headings != len(problems) {
		t.Errorf("docs/http-problems.md has %d headings for %d problems", headings, len(problems))
	}
}

// problemsOf reads the names and statuses of problems from their source.
func problemsOf(t *testing.T, file string) map[string]string {
	t.Helper()
	source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found, constants := make(map[string]string), constantsOf(source)
	ast.Inspect(source, func(n ast.Node) bool {
		literal, ok := n.(*ast.CompositeLit)
		if !ok || fmt.Sprint(literal.Type) != "problem" {
			return true
		}
		var name, status string
		for _, e := range literal.Elts {
			switch field := e.(*ast.KeyValueExpr); fmt.Sprint(field.Key) {
			case "name":
				name = textOf(field.Value, constants)
			case "status":
				status = statusOf(field.Value)
			}
		}
		if name == "" || status == "" {
			t.Errorf("a problem in %s has no name or status that can be read", file)
		}
		found[name] = status
		return true
	})
	return found
}

func constantsOf(source *ast.File) map[string]string {
	constants := make(map[string]string)
	ast.Inspect(source, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Names) == 1 && len(spec.Values) == 1 {
			constants[spec.Names[0].Name] = textOf(spec.Values[0], nil)
		}
		return true
	})
	return constants
}

func textOf(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.Ident:
		return constants[e.Name]
	}
	return ""
}

// statusOf turns http.StatusGone into 410.
func statusOf(e ast.Expr) string {
	constant, ok := e.(*ast.SelectorExpr)
	for code := 400; ok && code < 600; code++ {
		if text := http.StatusText(code); text != "" && "Status"+strings.ReplaceAll(text, " ", "") == constant.Sel.Name {
			return strconv.Itoa(code)
		}
	}
	return ""
}
