package once_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// heldOverCalls are the mutexes that are held over a call with a context, with
// the reason why nobody waits for one longer than he may. Others take a
// turn.Turn, whose waiters obey their contexts.
var heldOverCalls = map[string]string{
	"broker/kafkabroker/session.go s.tracker":               "works in memory",
	"broker/membroker/publisher.go b.mu":                    "works in memory",
	"broker/pubsubbroker/session.go s.extending":            "each session renews alone",
	"cmd/once/internal/demo/count.go s.counting":            "the demo's own counters",
	"cmd/once/internal/demo/lasting.go s.counting":          "the demo's own counters",
	"cmd/once/internal/serve/web.go l.mu":                   "a look is limited to seconds, and shared by those that wait",
	"console/consumerchange.go v.editing":                   "one edit at a time, limited to its time",
	"internal/cachetest/cachetest.go u.mu":                  "a test's double",
	"otelonce/watch.go g.mu":                                "a reading is limited to seconds, and shared by those that wait",
	"store/pgstore/internal/outboxlog/backlog.go l.mu":      "one reader of the log",
	"store/pgstore/internal/outboxlog/backlog.go t.marking": "one reader of the log",
}

// TestNoMutexIsHeldOverACallThatCanBlock looks for calls that get a context while
// a mutex is held that was locked in the same block: whoever waits for it ignores
// his own context.
func TestNoMutexIsHeldOverACallThatCanBlock(t *testing.T) {
	fset, seen := token.NewFileSet(), make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || path != "." && strings.HasPrefix(d.Name(), ".") ||
			slices.Contains([]string{"integration", "bench", "examples"}, path)):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			block, ok := n.(*ast.BlockStmt)
			if !ok {
				return true
			}
			for _, held := range heldOver(block.List) {
				name := filepath.ToSlash(path) + " " + held.mutex
				if seen[name] = true; heldOverCalls[name] == "" {
					t.Errorf("%s: %s is held over a call with a context: take a turn.Turn, or work without the lock",
						fset.Position(held.at), held.mutex)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range heldOverCalls {
		if !seen[name] {
			t.Errorf("%s is no longer held over a call: take it out of the list", name)
		}
	}
}

type heldCall struct {
	mutex string
	at    token.Pos
}

// heldOver returns the calls with a context between a Lock and its Unlock, or
// the end of the block.
func heldOver(block []ast.Stmt) (all []heldCall) {
	for i, s := range block {
		mutex := callOn(s, "Lock", "RLock")
		if mutex == "" {
			continue
		}
		for _, s := range block[i+1:] {
			if callOn(s, "Unlock", "RUnlock") == mutex {
				break
			}
			ast.Inspect(s, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncLit, *ast.GoStmt:
					return false
				case *ast.CallExpr:
					if slices.ContainsFunc(n.Args, isContext) && !isAboutContexts(n) {
						all = append(all, heldCall{mutex, n.Pos()})
					}
				}
				return true
			})
		}
	}
	return all
}

// isContext reports whether an argument has one of the names of contexts.
func isContext(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && (strings.Contains(strings.ToLower(id.Name), "ctx") || id.Name == "working" || id.Name == "limited")
}

// isAboutContexts reports whether a call is one of package context, or logs.
func isAboutContexts(c *ast.CallExpr) bool {
	f, ok := c.Fun.(*ast.SelectorExpr)
	return ok && (dotted(f.X) == "context" || strings.HasSuffix(dotted(f.X), "Logger"))
}

// callOn returns the receiver of a statement that calls one of these methods.
func callOn(s ast.Stmt, methods ...string) string {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return ""
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok || len(call.Args) > 0 {
		return ""
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains(methods, f.Sel.Name) {
		return ""
	}
	return dotted(f.X)
}

func dotted(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return dotted(e.X) + "." + e.Sel.Name
	}
	return ""
}
