// Package docs compiles the Go code of the documentation and runs its commands.
package docs

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root         = "../.."
	storePackage = "import \"github.com/effectively-once/once/store\"\n"
)

// contexts are the meanings of names that differ between blocks: "store" is a
// variable, with one of two types of transactions, or the package.
var contexts = []string{
	"var store *sqlstore.Store; var tx *sql.Tx",
	"var store *pgstore.Store; var tx pgx.Tx",
	"var New func(*Client, any) once.Store",
}

// TestGoCodeCompiles compiles each block of Go code in the README and in docs,
// with the names of context.go.txt. Unused declarations are allowed, and
// { ... } stands for omitted code.
func TestGoCodeCompiles(t *testing.T) {
	c := newCompiler(t)
	blocks := 0
	for _, b := range blocksOf(t) {
		if strings.Contains(b.code, "gin.New()") {
			continue // gin alone would take longer to compile than all the rest
		}
		if strings.Contains(b.code, "package main\n") {
			continue // TestProgramsAreExamples
		}
		blocks++
		var errs []error
		for _, context := range contexts {
			errs = append(errs, c.compile(b, context, "error"), c.compile(b, context, ""))
		}
		if !slices.Contains(errs, nil) {
			t.Errorf("%s does not compile:\n%v", b.place, errors.Join(errs...))
		}
	}
	if blocks < 20 {
		t.Errorf("only %d blocks of code were seen: the test reads the wrong files", blocks)
	}
}

// TestProgramsAreExamples compares each complete program with its example, which
// has its own tests.
func TestProgramsAreExamples(t *testing.T) {
	programs := 0
	for _, b := range blocksOf(t) {
		m := regexp.MustCompile(`^// Command (\w+) (?s:.*)\npackage main\n`).FindStringSubmatch(b.code)
		if m == nil {
			if strings.Contains(b.code, "package main\n") {
				t.Errorf("%s: a program begins with the name of its folder in examples: // Command name", b.place)
			}
			continue
		}
		programs++
		source, err := os.ReadFile(filepath.Join(root, "examples", m[1], "main.go"))
		if err != nil || b.code+"\n" != string(source) {
			t.Errorf("%s is not examples/%s/main.go: %v", b.place, m[1], err)
		}
	}
	if programs == 0 {
		t.Error("no program was found")
	}
}

// TestCompilerFindsErrors checks that TestGoCodeCompiles can fail.
func TestCompilerFindsErrors(t *testing.T) {
	c := newCompiler(t)
	for code, want := range map[string]string{
		"x := once.Nothing":                       "undefined: once.Nothing",
		"store.List(ctx)":                         "not enough arguments",
		"func f() error { ... }\nfunc f() { }":    "redeclared",
		"if err := store.Migrate(ctx); { ... }":   "missing condition",
		"err := store.Migrate()":                  "not enough arguments",
		"_, err := charge.Outcome(Receipt{})":     "cannot use",
		"desk := inbox.Admin{Shop: keys}":         "unknown field Shop",
		"import \"example.com/elsewhere\"\nx()":   "could not import",
		"billing.Run(ctx)":                        "undefined: billing",
		"type T struct{ once.Option }":            "undefined: once.Option",
		"return once.NotDone":                     "cannot use",
		"for range 3 { undeclared() }":            "undefined: undeclared",
		"var o once.Options\no.MaxOutcome = \"\"": "cannot use",
	} {
		err := c.compile(block{place: "test", code: code}, contexts[0], "error")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nhas the error %v, want %q", code, err, want)
		}
	}
	if err := c.compile(block{place: "test", code: "n := 3\nif err := f(); err != nil { ... }\n\nfunc f() error { ... }"},
		contexts[0], ""); err != nil {
		t.Errorf("code that is right: %v", err)
	}
}

// block is a block of code in a file.
type block struct{ place, code string }

func blocksOf(t *testing.T) (all []block) {
	t.Helper()
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var code []string
		begun := 0
		for i, line := range strings.Split(string(text), "\n") {
			switch {
			case line == "```go":
				begun, code = i+1, nil
			case line == "```" && begun > 0:
				all = append(all, block{fmt.Sprintf("%s:%d", filepath.Base(file), begun), strings.Join(code, "\n")})
				begun = 0
			default:
				code = append(code, line)
			}
		}
	}
	return all
}

type compiler struct {
	files    *token.FileSet
	importer types.Importer
	imports  string
	context  *ast.File
}

func newCompiler(t *testing.T) *compiler {
	t.Helper()
	c := &compiler{files: token.NewFileSet()}
	declared, err := parser.ParseFile(c.files, "imports_test.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}"}
	if raceDetector() {
		args = append(args, "-race") // so that nothing is compiled twice
	}
	for _, spec := range declared.Imports {
		c.imports += "import " + spec.Path.Value + "\n"
		path, _ := strconv.Unquote(spec.Path.Value)
		args = append(args, path)
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		exports[path] = file
	}
	c.importer = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("%s is not in imports_test.go", path)
		}
		return os.Open(exports[path])
	})
	text, err := os.ReadFile("context.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("package docs\n"), []byte("package docs\n"+strings.Replace(c.imports, storePackage, "", 1)), 1)
	if c.context, err = parser.ParseFile(c.files, "context.go.txt", text, 0); err != nil {
		t.Fatal(err)
	}
	return c
}

func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

var (
	leftOut  = regexp.MustCompile(`\{ \.\.\. \}|^\t*\.\.\.$|(?m:^\t*(?://)? ?\.\.\.$)`)
	topLevel = regexp.MustCompile(`^(func (\(\w+ [*\w]+\) )?\w+\(|type \w+ )`)
	field    = regexp.MustCompile(`^[A-Z]\w+: `)
	unused   = regexp.MustCompile(`^(declared and not used|.* imported (as \w+ )?and not used)`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
	imported = regexp.MustCompile(`(?m)^import (\(\n(?:[^)]*\n)?\)|".*")\n?`)
)

// compile type-checks a block. It puts statements into a function, declarations
// of functions and types outside it, and a field with its value into a literal.
func (c *compiler) compile(b block, context, result string) error {
	_, _, err := c.check(b, context, result, nil)
	return err
}

// check is compile with what it has found out about the code.
func (c *compiler) check(b block, context, result string, info *types.Info) (*types.Package, []*ast.File, error) {
	code := strings.NewReplacer("{ ... }", "{ panic(0) }").Replace(b.code)
	code = leftOut.ReplaceAllString(code, "")
	imports := ""
	for _, path := range quoted.FindAllString(strings.Join(imported.FindAllString(code, -1), ""), -1) {
		if !strings.Contains(c.imports, path) {
			imports += "import " + path + "\n"
		}
	}
	code = imported.ReplaceAllString(code, "")
	var outside, inside []string
	depth, top := 0, false
	for _, line := range strings.Split(code, "\n") {
		if depth == 0 {
			top = topLevel.MatchString(line)
		}
		depth += strings.Count(line, "{") + strings.Count(line, "(") - strings.Count(line, "}") - strings.Count(line, ")")
		if top {
			outside = append(outside, line)
		} else {
			inside = append(inside, line)
		}
	}
	statements := strings.Join(inside, "\n")
	if field.MatchString(statements) {
		statements = "opts = &httponce.Options{\n" + statements + "\n}"
	}
	ours := c.imports
	if strings.Contains(context, "var store ") {
		ours = strings.Replace(ours, storePackage, "", 1)
	}
	source := fmt.Sprintf("package docs\n%s%s\n%s\n%s\nfunc _() %s {\nvar err error\n{\n%s\n}\npanic(0)\n}\n",
		ours, imports, context, strings.Join(outside, "\n"), result, statements)
	parsed, err := parser.ParseFile(c.files, b.place, source, 0)
	if err != nil {
		return nil, nil, err
	}
	var found scanner.ErrorList
	config := types.Config{Importer: c.importer, Error: func(err error) {
		var typed types.Error
		if errors.As(err, &typed) && !unused.MatchString(typed.Msg) {
			found.Add(c.files.Position(typed.Pos), typed.Msg)
		}
	}}
	files := []*ast.File{c.context, parsed}
	pkg, _ := config.Check("docs", c.files, files, info)
	return pkg, files, found.Err()
}

// TestNamedTestsExist checks that the tests named in docs/windows.md exist in
// the named directories.
func TestNamedTestsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "windows.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("\\| (?:`([a-z/]+)` |the root package: )(Test\\w+) \\|").FindAllStringSubmatch(string(text), -1)
	if len(named) < 30 {
		t.Errorf("only %d tests were found", len(named))
	}
	for _, m := range named {
		files, _ := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
		if !slices.ContainsFunc(files, func(file string) bool {
			source, err := os.ReadFile(file)
			return err == nil && bytes.Contains(source, []byte("\nfunc "+m[2]+"("))
		}) {
			t.Errorf("there is no %s in %q", m[2], m[1])
		}
	}
}

// TestLinksLeadSomewhere follows the links between documents and to files of the
// tree.
func TestLinksLeadSomewhere(t *testing.T) {
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range linked.FindAllStringSubmatch(string(text), -1) {
			target := file
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(file), m[1])
			}
			if strings.Contains(m[1], "://") {
				continue
			}
			there, err := os.Stat(target)
			if err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(file), m[1], err)
			} else if m[2] != "" && !there.IsDir() && !slices.Contains(anchors(t, target), m[2][1:]) {
				t.Errorf("%s links to %s, which has no such heading", filepath.Base(file), m[1]+m[2])
			}
		}
	}
}

// anchors returns the link anchors of the headings of a document.
func anchors(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dropped := regexp.MustCompile(`[^\p{L}\p{N}\-_ ]`)
	for line := range strings.Lines(string(text)) {
		if name, heading := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); heading && strings.HasPrefix(line, "#") {
			name = dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(name)), "")
			all = append(all, strings.ReplaceAll(name, " ", "-"))
		}
	}
	return all
}

// TestEachAlertIsExplained checks that docs/operating.md explains each alert, and
// no others.
func TestEachAlertIsExplained(t *testing.T) {
	names := func(file, pattern string) (all []string) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return all
	}
	alerts := names("observe/alerts/once.rules.yml", `alert: (\w+)`)
	explained := names("docs/operating.md", `(?m)^\| (Once\w+) \|`)
	if len(alerts) < 10 || !slices.Equal(alerts, explained) {
		t.Errorf("the alerts are %v, docs/operating.md explains %v", alerts, explained)
	}
}
