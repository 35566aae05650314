package rules

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"

	"golang.org/x/tools/go/analysis/passes/inspect"
)

// indexer finds what all rules need. It is read-only afterwards, because drivers
// run rules concurrently.
var indexer = &analysis.Analyzer{
	Name: "oncevetindex", Doc: "find the guarded work of a package",
	Requires: []*analysis.Analyzer{inspect.Analyzer}, ResultType: reflect.TypeFor[*index](), Run: newIndex,
}

// index is what the rules know about a package.
type index struct {
	fset     *token.FileSet
	files    []*ast.File
	info     *types.Info
	pkg      *types.Package
	cursor   inspector.Cursor
	uses     bool // the package uses package once
	decls    map[*types.Func]*ast.FuncDecl
	vars     map[types.Object][]source
	pools    pools
	guards   []*guard
	silences map[*ast.File]map[int]silence
}

// source is one assignment to a variable.
type source struct {
	expr    ast.Expr // nil: it is not a plain expression, such as &x given away
	result  int      // which result of the call expr, or -1: all of it
	at      ast.Node // the statement
	ranging *ast.RangeStmt
}

const once = "github.com/effectively-once/once"

func newIndex(pass *analysis.Pass) (any, error) {
	x := &index{fset: pass.Fset, files: pass.Files, info: pass.TypesInfo, pkg: pass.Pkg,
		cursor: pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).Root(),
		decls:  map[*types.Func]*ast.FuncDecl{}, vars: map[types.Object][]source{},
		silences: map[*ast.File]map[int]silence{}}
	for _, imported := range pass.Pkg.Imports() {
		x.uses = x.uses || imported.Path() == once || strings.HasPrefix(imported.Path(), once+"/")
	}
	if !x.uses {
		return x, nil
	}
	for _, f := range x.files {
		x.silences[f] = x.silencesOf(f)
		ast.Inspect(f, x.collect)
	}
	x.findPools()
	x.findGuards()
	return x, nil
}

// collect notes declarations of functions, and assignments.
func (x *index) collect(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if f, ok := x.info.Defs[n.Name].(*types.Func); ok && n.Body != nil {
			x.decls[f] = n
		}
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			s := source{at: n, result: -1}
			switch {
			case n.Tok != token.ASSIGN && n.Tok != token.DEFINE: // x += y
				s.expr = n.Rhs[0]
			case len(n.Lhs) == len(n.Rhs):
				s.expr = n.Rhs[i]
			default:
				s.expr, s.result = n.Rhs[0], i
			}
			x.assign(to, s)
		}
	case *ast.ValueSpec:
		for i, to := range n.Names {
			switch {
			case len(n.Values) == len(n.Names):
				x.assign(to, source{expr: n.Values[i], result: -1, at: n})
			case len(n.Values) == 1:
				x.assign(to, source{expr: n.Values[0], result: i, at: n})
			}
		}
	case *ast.RangeStmt:
		for _, to := range []ast.Expr{n.Key, n.Value} {
			if to != nil {
				x.assign(to, source{at: n, ranging: n})
			}
		}
	case *ast.CompositeLit:
		for _, elt := range n.Elts {
			if pair, ok := elt.(*ast.KeyValueExpr); ok {
				if field, ok := x.object(pair.Key).(*types.Var); ok && field.IsField() {
					x.vars[field.Origin()] = append(x.vars[field.Origin()], source{expr: pair.Value, result: -1, at: pair})
				}
			}
		}
	case *ast.IncDecStmt:
		x.assign(n.X, source{at: n})
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			x.assign(n.X, source{at: n})
		}
	}
	return true
}

func (x *index) assign(to ast.Expr, s source) {
	switch to := ast.Unparen(to).(type) {
	case *ast.Ident:
		if v := x.info.ObjectOf(to); v != nil {
			x.vars[v] = append(x.vars[v], s)
		}
	case *ast.SelectorExpr:
		if field, ok := x.info.ObjectOf(to.Sel).(*types.Var); ok && field.IsField() {
			x.vars[field.Origin()] = append(x.vars[field.Origin()], s)
		}
	}
}

// only returns the expression that a variable or a field has, if it is assigned
// only once. An exported field may be set elsewhere.
func (x *index) only(v types.Object) (ast.Expr, bool) {
	if field, ok := v.(*types.Var); ok && field.IsField() {
		if field.Exported() {
			return nil, false
		}
		v = field.Origin()
	}
	if s := x.vars[v]; len(s) == 1 && s[0].expr != nil && s[0].result < 0 {
		return s[0].expr, true
	}
	return nil, false
}

// object returns what an identifier, or the field or method of a selector, is.
func (x *index) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return x.info.ObjectOf(e)
	case *ast.SelectorExpr:
		return x.info.ObjectOf(e.Sel)
	case *ast.IndexExpr:
		return x.object(e.X)
	case *ast.IndexListExpr:
		return x.object(e.X)
	}
	return nil
}

// variable returns the variable that an expression is, or nil.
func (x *index) variable(e ast.Expr) *types.Var {
	if id, ok := ast.Unparen(e).(*ast.Ident); ok {
		v, _ := x.info.ObjectOf(id).(*types.Var)
		return v
	}
	return nil
}

// callee returns the function or method that a call names, or nil. A method may
// be that of an interface.
func (x *index) callee(call *ast.CallExpr) *types.Func {
	f, _ := typeutil.Callee(x.info, call).(*types.Func)
	if f == nil {
		f, _ = x.object(x.called(call)).(*types.Func)
	}
	if f != nil {
		f = f.Origin()
	}
	return f
}

// called returns what a call calls: the function or method that a variable or a
// field has, if that is the only one it is set to.
func (x *index) called(call *ast.CallExpr) ast.Expr {
	if v, ok := x.object(call.Fun).(*types.Var); ok {
		if value, ok := x.only(v); ok {
			if _, function := x.object(value).(*types.Func); function {
				return ast.Unparen(value)
			}
		}
	}
	return ast.Unparen(call.Fun)
}

// receiver returns the expression that a method is called on, or nil.
func (x *index) receiver(call *ast.CallExpr) ast.Expr {
	sel, ok := x.called(call).(*ast.SelectorExpr)
	if !ok || x.info.Selections[sel] == nil {
		return nil
	}
	return sel.X
}

// is reports whether a call is of a function that package once has under this
// name: "DoTx", "inbox.Tx".
func (x *index) is(call *ast.CallExpr, names ...string) bool {
	f := x.callee(call)
	if f == nil || f.Pkg() == nil || f.Signature().Recv() != nil {
		return false
	}
	for _, name := range names {
		if f.Pkg().Path()+"."+f.Name() == path(name) {
			return true
		}
	}
	return false
}

// path completes the name of a function or variable of package once.
func path(name string) string {
	if dir, rest, inner := strings.Cut(name, "."); inner {
		return once + "/" + dir + "." + rest
	}
	return once + "." + name
}

// sentinel returns the name of the error variable of package once that an
// expression is, such as "once.ErrParked".
func (x *index) sentinel(e ast.Expr) (name string, ok bool) {
	v, _ := x.object(e).(*types.Var)
	if v == nil || v.Pkg() == nil || v.Parent() != v.Pkg().Scope() || !strings.HasPrefix(v.Name(), "Err") {
		return "", false
	}
	if v.Pkg().Path() != once {
		return "", false
	}
	return v.Pkg().Name() + "." + v.Name(), true
}

func (x *index) fileOf(pos token.Pos) *ast.File {
	for _, f := range x.files {
		if f.FileStart <= pos && pos <= f.FileEnd {
			return f
		}
	}
	return nil
}

func (x *index) typeOf(e ast.Expr) types.Type { return x.info.TypeOf(e) }

// named returns the package path, without the version of its module, and the
// name of a type or of what it points to.
func named(t types.Type) (path, name string) {
	if t == nil {
		return "", ""
	}
	t = types.Unalias(t)
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	n, ok := t.(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return "", ""
	}
	return unversioned(n.Obj().Pkg().Path()), n.Obj().Name()
}

// unversioned takes the major version out of the path of a package.
func unversioned(path string) string {
	if _, vendored, ok := strings.Cut(path, "/vendor/"); ok {
		path = vendored
	}
	parts := strings.Split(path, "/")
	kept := parts[:0]
	for i, part := range parts {
		if i > 0 && len(part) > 1 && part[0] == 'v' && strings.Trim(part[1:], "0123456789") == "" {
			continue
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, "/")
}

// text returns the source of a short expression.
func (x *index) text(e ast.Expr) string { return types.ExprString(e) }
