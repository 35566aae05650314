package rules

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
)

// marks are functions whose result has to reach the guard.
var marks = []string{"NotDone", "Permanent", "RetryAfter", "inbox.Unavailable", "inbox.Duplicate", "inbox.Failed"}

var lostMark = rule{"lostmark", `report results of once.NotDone and its like that are lost

once.NotDone, once.Permanent, once.RetryAfter, inbox.Unavailable, inbox.Duplicate
and inbox.Failed wrap an error. Only the error that they return says so. It is lost
if it is discarded, or if it becomes text: by fmt.Errorf without %w, or by its
method Error. The guard then sees any error, and the outcome is unknown.`, func(c *checker) {
	for at := range c.root().Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		if c.is(call, marks...) {
			c.discarded(at, call)
		}
		c.formatted(at, call)
	}
}}

// discarded reports a mark whose result goes nowhere, or only its text.
func (c *checker) discarded(at inspector.Cursor, call *ast.CallExpr) {
	name := shown(call)
	switch parent := at.Parent().Node().(type) {
	case *ast.ExprStmt:
		c.report(call, nil, "the result of %s is discarded, so that nobody learns of it: return it", name)
	case *ast.GoStmt, *ast.DeferStmt:
		c.report(call, nil, "the result of %s is discarded, so that nobody learns of it: return it", name)
	case *ast.AssignStmt:
		if len(parent.Lhs) == len(parent.Rhs) {
			for i, from := range parent.Rhs {
				if id, ok := parent.Lhs[i].(*ast.Ident); ok && from == call && id.Name == "_" {
					c.report(call, nil, "the result of %s is discarded, so that nobody learns of it: return it", name)
				}
			}
		}
	case *ast.SelectorExpr:
		if parent.Sel.Name == "Error" {
			c.report(call, nil, "only the text of %s is kept, so that nobody learns of it: return it, or wrap it with %%w",
				name)
		}
	}
}

// formatted reports a mark that fmt.Errorf formats without wrapping it.
func (c *checker) formatted(at inspector.Cursor, call *ast.CallExpr) {
	f := c.callee(call)
	if f == nil || f.Pkg() == nil || f.Pkg().Path() != "fmt" || f.Name() != "Errorf" || len(call.Args) < 2 ||
		call.Ellipsis.IsValid() {
		return
	}
	format := c.info.Types[call.Args[0]].Value
	if format == nil || format.Kind() != constant.String {
		return
	}
	verbs, ok := verbsOf(constant.StringVal(format))
	if !ok || len(verbs) != len(call.Args)-1 {
		return
	}
	for i, arg := range call.Args[1:] {
		if verbs[i].letter == 'w' {
			continue
		}
		mark, found := c.marked(at, arg)
		if !found {
			continue
		}
		c.report(arg, c.wrapFix(call, verbs[i]),
			"fmt.Errorf keeps only the text of %s, so that nobody learns of it: use %%w", mark)
	}
}

// marked says which mark an expression has: it is the call of one, or a variable
// whose last assignment before is one.
func (c *checker) marked(at inspector.Cursor, e ast.Expr) (mark string, found bool) {
	e = ast.Unparen(e)
	if call, ok := e.(*ast.CallExpr); ok {
		if c.is(call, marks...) {
			return shown(call), true
		}
		return "", false
	}
	v := c.variable(e)
	if v == nil || !c.local(v) {
		return "", false
	}
	last := c.lastSource(at, v, e.Pos())
	if last == nil {
		return "", false
	}
	call, ok := ast.Unparen(last.expr).(*ast.CallExpr)
	if !ok {
		return "", false
	}
	if c.is(call, marks...) {
		return shown(call), true
	}
	if decl := c.decls[c.callee(call)]; decl != nil {
		return c.returnsMark(decl)
	}
	return "", false
}

// lastSource returns the last assignment to a variable before a place, if its
// block is around that place.
func (c *checker) lastSource(at inspector.Cursor, v *types.Var, before token.Pos) (last *source) {
	for i, s := range c.vars[v] {
		if s.expr == nil {
			return nil
		}
		if s.at.Pos() < before && (last == nil || s.at.Pos() > last.at.Pos()) {
			last = &c.vars[v][i]
		}
	}
	if last == nil {
		return nil
	}
	here, ok := c.cursor.FindNode(last.at)
	if !ok {
		return nil
	}
	if block := here.Parent().Node(); !(block.Pos() <= at.Node().Pos() && at.Node().End() <= block.End()) {
		return nil
	}
	return last
}

// returnsMark says which mark a function returns as its last result, itself.
func (c *checker) returnsMark(decl *ast.FuncDecl) (mark string, found bool) {
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if len(n.Results) == 0 {
				return false
			}
			if call, ok := ast.Unparen(n.Results[len(n.Results)-1]).(*ast.CallExpr); ok && c.is(call, marks...) {
				mark, found = shown(call)+", which "+decl.Name.Name+" returns", true
			}
		}
		return true
	})
	return mark, found
}

// verb is a verb of a format.
type verb struct {
	letter byte
	at     int // of the letter in the format
}

// verbsOf returns the verbs of a format that take one argument each, in their
// order. ok is false for a format with indexes or stars.
func verbsOf(format string) (verbs []verb, ok bool) {
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			continue
		}
		for i++; i < len(format) && strings.IndexByte("+-# 0123456789.", format[i]) >= 0; i++ {
		}
		if i == len(format) || format[i] == '[' || format[i] == '*' {
			return nil, false
		}
		if format[i] != '%' {
			verbs = append(verbs, verb{format[i], i})
		}
	}
	return verbs, true
}

// wrapFix replaces a verb by %w, in a format without escapes.
func (c *checker) wrapFix(call *ast.CallExpr, v verb) []analysis.SuggestedFix {
	lit, ok := ast.Unparen(call.Args[0]).(*ast.BasicLit)
	if !ok || strings.Contains(lit.Value, `\`) || v.letter != 'v' && v.letter != 's' {
		return nil
	}
	at := lit.Pos() + token.Pos(1+v.at)
	edit := analysis.TextEdit{Pos: at, End: at + 1, NewText: []byte("w")}
	return []analysis.SuggestedFix{{Message: "Wrap the error", TextEdits: []analysis.TextEdit{edit}}}
}

// again are the errors after which the same call may succeed.
var again = []string{"once.ErrInProgress", "once.ErrOutcomeUnknown", "once.ErrLeaseLost", "once.ErrConflict"}

var mayRetry = rule{"mayretry", `report errors that are compared where MayRetry answers

The errors of once are wrapped, with the key and a hint, so == misses them: use
errors.Is. Whether the same call may succeed later is answered by
once.MayRetry, which also knows the errors of the work and the time to wait. A loop
that repeats a call after the errors that it names misses some. A message that is
acknowledged although its work is still in progress is lost if that work fails.`, func(c *checker) {
	for at := range c.root().Preorder((*ast.BinaryExpr)(nil), (*ast.SwitchStmt)(nil), (*ast.IfStmt)(nil),
		(*ast.CaseClause)(nil)) {
		switch n := at.Node().(type) {
		case *ast.BinaryExpr:
			c.compared(at, n)
		case *ast.SwitchStmt:
			c.switched(n)
		case *ast.IfStmt:
			c.repeated(at, []ast.Expr{n.Cond}, n.Body.List)
			c.acknowledged([]ast.Expr{n.Cond}, n.Body.List)
		case *ast.CaseClause:
			c.repeated(at, n.List, n.Body)
			c.acknowledged(n.List, n.Body)
		}
	}
}}

// compared reports err == once.ErrX.
func (c *checker) compared(at inspector.Cursor, n *ast.BinaryExpr) {
	if n.Op != token.EQL && n.Op != token.NEQ || c.looksAtEach(at) {
		return
	}
	for _, pair := range [][2]ast.Expr{{n.X, n.Y}, {n.Y, n.X}} {
		err, target := pair[0], pair[1]
		if call, ok := ast.Unparen(target).(*ast.CallExpr); ok { // err.Error() == once.ErrX.Error()
			if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok && sel.Sel.Name == "Error" {
				if name, ok := c.sentinel(sel.X); ok {
					c.report(n, nil, "the text of an error is compared with that of %s, which says more: use errors.Is", name)
					return
				}
			}
		}
		name, ok := c.sentinel(target)
		if !ok {
			continue
		}
		if _, both := c.sentinel(err); both {
			return
		}
		not := ""
		if n.Op == token.NEQ {
			not = "!"
		}
		var fix []analysis.SuggestedFix
		if importName(c.fileOf(n.Pos()), "errors") == "errors" {
			fix = replace(n, not+"errors.Is("+c.text(err)+", "+c.text(target)+")", "Use errors.Is")
		}
		c.report(n, fix, "errors of once are wrapped, so %s misses %s: use errors.Is", n.Op, name)
		return
	}
}

// looksAtEach reports whether a comparison is about an error that is not wrapped,
// or whose causes are compared one by one: in a method Is, or in a function that
// calls Unwrap.
func (c *checker) looksAtEach(at inspector.Cursor) bool {
	for around := range at.Enclosing((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		if decl, ok := around.Node().(*ast.FuncDecl); ok && decl.Recv != nil && decl.Name.Name == "Is" {
			return true
		}
		for call := range around.Preorder((*ast.CallExpr)(nil)) {
			if f := c.callee(call.Node().(*ast.CallExpr)); f != nil && f.Name() == "Unwrap" {
				return true
			}
		}
		return false
	}
	return false
}

// importName returns the name under which a file imports a package, or "".
func importName(f *ast.File, path string) string {
	for _, spec := range f.Imports {
		if spec.Path.Value == `"`+path+`"` {
			if spec.Name != nil {
				return spec.Name.Name
			}
			return path
		}
	}
	return ""
}

// switched reports switch err { case once.ErrX: }.
func (c *checker) switched(n *ast.SwitchStmt) {
	if n.Tag == nil {
		return
	}
	for _, clause := range n.Body.List {
		for _, e := range clause.(*ast.CaseClause).List {
			if name, ok := c.sentinel(e); ok {
				c.report(e, nil, "errors of once are wrapped, so this case misses %s: use errors.Is in a switch without %s",
					name, c.text(n.Tag))
			}
		}
	}
}

// testedAny is tested for conditions of which one has to hold.
func (c *checker) testedAny(conds []ast.Expr) (v *types.Var, names []string) {
	for i, cond := range conds {
		other, more := c.tested(cond)
		if other == nil || i > 0 && other != v {
			return nil, nil
		}
		v, names = other, append(names, more...)
	}
	return v, names
}

// tested returns the sentinels that a condition tests a variable for with
// errors.Is, connected by ||.
func (c *checker) tested(cond ast.Expr) (v *types.Var, names []string) {
	switch e := ast.Unparen(cond).(type) {
	case *ast.BinaryExpr:
		if e.Op != token.LOR {
			return nil, nil
		}
		left, leftNames := c.tested(e.X)
		right, rightNames := c.tested(e.Y)
		if left == nil || left != right {
			return nil, nil
		}
		return left, slices.Concat(leftNames, rightNames)
	case *ast.CallExpr:
		f := c.callee(e)
		if f == nil || f.FullName() != "errors.Is" || len(e.Args) != 2 {
			return nil, nil
		}
		if name, ok := c.sentinel(e.Args[1]); ok {
			return c.variable(e.Args[0]), []string{name}
		}
	}
	return nil, nil
}

// repeated reports a loop that repeats guarded work after the errors that it
// names, in a function that does not ask MayRetry.
func (c *checker) repeated(at inspector.Cursor, conds []ast.Expr, body []ast.Stmt) {
	v, names := c.testedAny(conds)
	if v == nil || !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(again, name) }) ||
		!continues(body) {
		return
	}
	for around := range at.Enclosing((*ast.ForStmt)(nil), (*ast.RangeStmt)(nil), (*ast.FuncLit)(nil),
		(*ast.FuncDecl)(nil)) {
		switch loop := around.Node().(type) {
		case *ast.ForStmt, *ast.RangeStmt:
			if c.sameWork(loop, v, at.Node().Pos()) && !c.asksMayRetry(around) {
				c.report(conds[0], nil,
					"the call is repeated after %s only: once.MayRetry says for every error whether to repeat it, and when",
					strings.Join(names, " and "))
			}
			return
		default:
			return
		}
	}
}

// continues reports whether a block ends with continue.
func continues(body []ast.Stmt) bool {
	if len(body) == 0 {
		return false
	}
	last, ok := body[len(body)-1].(*ast.BranchStmt)
	return ok && last.Tok == token.CONTINUE && last.Label == nil
}

// sameWork reports whether a variable gets its error in a loop from guarded work
// that is the same in each turn.
func (c *checker) sameWork(loop ast.Node, v *types.Var, before token.Pos) bool {
	for _, s := range c.vars[v] {
		call, ok := s.expr.(*ast.CallExpr)
		if !ok || s.at.Pos() < loop.Pos() || s.at.Pos() > before {
			continue
		}
		name, _, guards := c.guardOf(call)
		if !guards || name != "Do" && name != "DoTx" {
			continue
		}
		same := true
		ast.Inspect(call.Args[2], func(n ast.Node) bool { // the unit of work
			if id, ok := n.(*ast.Ident); ok {
				if o := c.info.Uses[id]; o != nil && loop.Pos() <= o.Pos() && o.Pos() < loop.End() {
					same = false
				}
			}
			return same
		})
		if same {
			return true
		}
	}
	return false
}

func (c *checker) asksMayRetry(loop inspector.Cursor) bool {
	for at := range loop.Preorder((*ast.CallExpr)(nil)) {
		if c.is(at.Node().(*ast.CallExpr), "MayRetry") {
			return true
		}
	}
	return false
}

// acknowledged reports a delivery that is acknowledged because the work is in
// progress, or its outcome unknown.
func (c *checker) acknowledged(conds []ast.Expr, body []ast.Stmt) {
	v, names := c.testedAny(conds)
	if v == nil {
		return
	}
	for _, name := range names {
		if !slices.Contains(again, name) {
			continue
		}
		for _, s := range body {
			ast.Inspect(s, func(at ast.Node) bool {
				call, ok := at.(*ast.CallExpr)
				if ok && c.matches(call, acks) && strings.Contains(c.callee(call).Name(), "Ack") &&
					!strings.HasPrefix(c.callee(call).Name(), "N") {
					c.report(call, nil,
						"%s acknowledges the message after %s, which does not say that it was handled: return it to the broker",
						shown(call), name)
				}
				_, lit := at.(*ast.FuncLit)
				return !lit
			})
		}
	}
}
