// Package rules has the rules of the command oncevet as analyzers, for other
// drivers such as golangci-lint. A rule reports only what it is sure about.
//
// The analyzers know package once by its path and its exported names. They look
// into functions of the same package that a closure calls, and not into other
// packages. They need no facts, so that the dependencies of a program are not
// analyzed.
package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// page is where the rules are explained, each under its name.
const page = "https://github.com/effectively-once/once/blob/main/docs/vet.md"

// rule is a rule before it becomes an analyzer.
type rule struct {
	name  string
	doc   string // a sentence without its subject, for oncevet help
	check func(*checker)
}

var all = []rule{
	txEffect, txPool, txPublish, doInTx,
	unstableKey, attemptKey,
	earlyAck,
	lostMark, mayRetry,
	afterGuard,
}

// Analyzers returns the rules.
func Analyzers() []*analysis.Analyzer {
	var as []*analysis.Analyzer
	for _, r := range all {
		as = append(as, &analysis.Analyzer{
			Name: r.name, Doc: r.doc, URL: page + "#" + r.name,
			Requires: []*analysis.Analyzer{inspect.Analyzer, indexer},
			Run: func(pass *analysis.Pass) (any, error) {
				if x := pass.ResultOf[indexer].(*index); x.uses {
					r.check(&checker{Pass: pass, index: x, rule: r.name, reported: map[string]bool{}})
				}
				return nil, nil
			},
		})
	}
	return as
}

// checker is one rule at work on one package.
type checker struct {
	*analysis.Pass
	*index
	rule     string
	reported map[string]bool
}

func (c *checker) root() inspector.Cursor {
	return c.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root()
}

// calls visits the calls that guarded work makes. A comment in a helper silences
// the rule for all who call it.
func (c *checker) calls(g *guard, visit func(call)) {
	c.index.calls(g, func(call call) {
		if reason, silenced := c.silenced(call.Pos(), c.rule); call.helper == "" || !silenced || !reason {
			visit(call)
		}
	})
}

// report reports a finding, unless a comment silences it, or the same is
// reported of the same place.
func (c *checker) report(at ast.Node, fixes []analysis.SuggestedFix, format string, args ...any) {
	if !c.checks(at.Pos()) {
		return
	}
	reason, silenced := c.silenced(at.Pos(), c.rule)
	if silenced && reason {
		return
	}
	message := c.rule + ": " + fmt.Sprintf(format, args...)
	if silenced {
		message += " (a nolint comment needs a reason: //nolint:" + c.rule + " // why)"
	}
	if id := fmt.Sprint(at.Pos(), message); c.reported[id] {
		return
	} else {
		c.reported[id] = true
	}
	c.Report(analysis.Diagnostic{
		Pos: at.Pos(), End: at.End(),
		Category: c.rule, Message: message, URL: page + "#" + c.rule,
		SuggestedFixes: fixes,
	})
}

// replace is a fix that replaces a node by text.
func replace(node ast.Node, text, message string) []analysis.SuggestedFix {
	return []analysis.SuggestedFix{{Message: message,
		TextEdits: []analysis.TextEdit{{Pos: node.Pos(), End: node.End(), NewText: []byte(text)}}}}
}

// checks reports whether code at this position is checked: it is in no test file
// and no generated file.
func (x *index) checks(pos token.Pos) bool {
	f := x.fileOf(pos)
	return f != nil && !ast.IsGenerated(f) && !strings.HasSuffix(x.fset.Position(pos).Filename, "_test.go")
}
