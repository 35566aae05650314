package rules

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// kind is what kind of work a guard guards.
type kind int

const (
	inTx    kind = iota // in a transaction of the store
	outside             // an effect outside the store's database
	request             // an HTTP handler
)

// guard is work that package once guards.
type guard struct {
	kind kind
	api  string        // "once.DoTx"
	call *ast.CallExpr // of the API
	work function
	tx   types.Object // what the work's transaction is called; nil: it has no name
	txOf types.Type   // the type of its transaction
	key  types.Object // the key that work outside gets; nil: it has no name
}

// function is a closure or a declared function.
type function struct {
	node ast.Node // FuncLit or FuncDecl
	typ  *ast.FuncType
	body *ast.BlockStmt
}

// part is an argument of an API that is guarded work.
type part struct {
	arg   int
	kind  kind
	txArg int // the parameter of the work that is the transaction; -1: none
	key   int // the parameter of the work that is the key; -1: none
}

var apis = map[string][]part{
	"Do":                  {{arg: 3, kind: outside, txArg: -1, key: 1}},
	"DoTx":                {{arg: 3, kind: inTx, txArg: 1, key: -1}},
	"InTx":                {{arg: 4, kind: inTx, txArg: -1, key: -1}},
	"inbox.Tx":            {{arg: 1, kind: inTx, txArg: 1, key: -1}},
	"inbox.Batch":         {{arg: 1, kind: inTx, txArg: 1, key: -1}},
	"inbox.Do":            {{arg: 2, kind: outside, txArg: -1, key: 1}},
	"inbox.DoThenTx":      {{arg: 2, kind: outside, txArg: -1, key: 1}, {arg: 3, kind: inTx, txArg: 1, key: -1}},
	"httponce.Handler":    {{arg: 2, kind: request, txArg: -1, key: -1}},
	"httponce.HandlerTx":  {{arg: 2, kind: inTx, txArg: 2, key: -1}},
	"httponce.Middleware": nil, // what it returns is called with the handler
}

// guardOf returns the name of the API that a call is of, if it guards work:
// "inbox.Tx", and "once.DoTx" for one of package once itself.
func (x *index) guardOf(call *ast.CallExpr) (name, api string, ok bool) {
	f := x.callee(call)
	if f == nil || f.Pkg() == nil {
		return "", "", false
	}
	for name := range apis {
		if x.is(call, name) {
			return name, f.Pkg().Name() + "." + f.Name(), true
		}
	}
	return "", "", false
}

func (x *index) findGuards() {
	for at := range x.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		if inner, ok := ast.Unparen(call.Fun).(*ast.CallExpr); ok && x.is(inner, "httponce.Middleware") &&
			len(call.Args) == 1 {
			x.addGuards(call, call.Args[0], guard{kind: request, api: "httponce.Middleware", call: call},
				part{txArg: -1, key: -1})
		}
		name, api, ok := x.guardOf(call)
		if !ok {
			continue
		}
		for _, p := range apis[name] {
			if p.arg >= len(call.Args) {
				continue
			}
			g := guard{kind: p.kind, api: api, call: call}
			if name == "InTx" {
				g.tx, g.txOf = x.object(call.Args[2]), x.typeOf(call.Args[2])
			}
			x.addGuards(call, call.Args[p.arg], g, p)
		}
	}
	for _, g := range slices.Clone(x.guards) {
		x.addPassed(g)
	}
}

// addPassed adds guards for the functions that guarded work gets from the callers
// of the function around it: f of
//
//	func (s *Shop) inTx(f func(tx *sql.Tx) error) { once.DoTx(…, func(…, tx *sql.Tx) … { return f(tx) }) }
func (x *index) addPassed(g *guard) {
	ast.Inspect(g.work.body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		v := x.variable(call.Fun)
		if v == nil {
			return true
		}
		wrapper, place := x.parameterOf(g.work.node, v)
		if wrapper == nil {
			return true
		}
		p := part{txArg: -1, key: -1}
		for i, arg := range call.Args {
			if v := x.variable(arg); v != nil && v == g.tx {
				p.txArg = i
			} else if v != nil && v == g.key {
				p.key = i
			}
		}
		passed := *g
		x.addCallers(wrapper, place, passed, p)
		return true
	})
}

// addCallers adds guards for the functions that callers pass to a wrapper.
func (x *index) addCallers(wrapper *types.Func, place int, g guard, p part) {
	for c := range x.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := c.Node().(*ast.CallExpr)
		if x.callee(call) == wrapper && place < len(call.Args) {
			x.addGuard(call.Args[place], g, p)
		}
	}
}

// addGuards adds a guard for each function that an argument may be. If the
// argument is a parameter of the function around the call, that function is a
// wrapper, and the work is what its callers give it.
func (x *index) addGuards(at ast.Node, arg ast.Expr, g guard, p part) {
	x.addGuard(arg, g, p)
	v := x.variable(arg)
	if v == nil {
		return
	}
	wrapper, place := x.parameterOf(at, v)
	if wrapper != nil {
		x.addCallers(wrapper, place, g, p)
	}
}

// addGuard adds a guard for each function that an argument is.
func (x *index) addGuard(arg ast.Expr, g guard, p part) {
	for _, f := range x.functions(arg) {
		g := g
		g.work = f
		if p.txArg >= 0 {
			g.tx, g.txOf = x.parameter(f, p.txArg)
		}
		if p.key >= 0 {
			g.key, _ = x.parameter(f, p.key)
		}
		x.guards = append(x.guards, &g)
	}
}

// parameterOf returns the declared function around a node of which v is a
// parameter, and its place.
func (x *index) parameterOf(at ast.Node, v *types.Var) (*types.Func, int) {
	here, ok := x.cursor.FindNode(at)
	if !ok {
		return nil, 0
	}
	for around := range here.Enclosing((*ast.FuncDecl)(nil)) {
		f, _ := x.info.Defs[around.Node().(*ast.FuncDecl).Name].(*types.Func)
		if f == nil {
			continue
		}
		for i := range f.Signature().Params().Len() {
			if f.Signature().Params().At(i) == v {
				return f, i
			}
		}
	}
	return nil, 0
}

// functions returns the functions of this package that an expression may be:
// closures, declared functions and methods, variables that have only one, what a
// function of this package returns, and handlers of this package.
func (x *index) functions(e ast.Expr) []function {
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		return []function{{e, e.Type, e.Body}}
	case *ast.CallExpr:
		if x.info.Types[e.Fun].IsType() && len(e.Args) == 1 { // http.HandlerFunc(f)
			return x.functions(e.Args[0])
		}
		if decl := x.decls[x.callee(e)]; decl != nil {
			return x.returned(decl)
		}
	case *ast.Ident, *ast.SelectorExpr, *ast.IndexExpr, *ast.IndexListExpr:
		switch o := x.object(e).(type) {
		case *types.Func:
			if decl := x.decls[o.Origin()]; decl != nil {
				return []function{{decl, decl.Type, decl.Body}}
			}
		case *types.Var:
			if value, ok := x.only(o); ok {
				return x.functions(value)
			}
		}
	}
	return x.serveHTTP(e)
}

// returned returns the closures that a function returns.
func (x *index) returned(decl *ast.FuncDecl) (fs []function) {
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			for _, result := range n.Results {
				result = ast.Unparen(result)
				if call, ok := result.(*ast.CallExpr); ok && x.info.Types[call.Fun].IsType() && len(call.Args) == 1 {
					result = ast.Unparen(call.Args[0])
				}
				if lit, ok := result.(*ast.FuncLit); ok {
					fs = append(fs, function{lit, lit.Type, lit.Body})
				}
			}
		}
		return true
	})
	return fs
}

// serveHTTP returns the method ServeHTTP of a type of this package.
func (x *index) serveHTTP(e ast.Expr) []function {
	t := x.typeOf(e)
	if t == nil || types.IsInterface(t) {
		return nil
	}
	o, _, _ := types.LookupFieldOrMethod(t, true, x.pkg, "ServeHTTP")
	if f, ok := o.(*types.Func); ok {
		if decl := x.decls[f.Origin()]; decl != nil {
			return []function{{decl, decl.Type, decl.Body}}
		}
	}
	return nil
}

// parameter returns a parameter of a function. It is nil if it has no name.
func (x *index) parameter(f function, place int) (types.Object, types.Type) {
	i := 0
	for _, field := range f.typ.Params.List {
		if len(field.Names) == 0 {
			if i == place {
				return nil, x.typeOf(field.Type)
			}
			i++
		}
		for _, name := range field.Names {
			if i == place {
				if name.Name == "_" {
					return nil, x.typeOf(field.Type)
				}
				return x.info.Defs[name], x.typeOf(field.Type)
			}
			i++
		}
	}
	return nil, nil
}

// depth is how many functions of the package are followed from guarded work.
const depth = 3

// call is a call that guarded work makes.
type call struct {
	*ast.CallExpr
	guard  *guard
	at     ast.Node              // where to report it: in the work itself
	helper string                // the function that makes it, if the work does not
	bound  map[types.Object]bool // the transaction and what helpers call it
}

// in says which helper makes the call.
func (c call) in() string {
	if c.helper == "" {
		return ""
	}
	return " (in " + c.helper + ")"
}

// calls visits the calls that guarded work makes, also by functions of this
// package and closures that it calls. It leaves out guarded work inside it.
func (x *index) calls(g *guard, visit func(call)) {
	w := walker{index: x, guard: g, visit: visit, seen: map[ast.Node]bool{g.work.node: true},
		bound: map[types.Object]bool{}}
	if g.tx != nil {
		w.bound[g.tx] = true
	}
	w.walk(g.work.body, nil, "", 0)
}

type walker struct {
	*index
	guard *guard
	visit func(call)
	seen  map[ast.Node]bool
	bound map[types.Object]bool
}

// walk visits the calls in a node. at is where to report them, nil for the work
// itself.
func (w *walker) walk(n ast.Node, at ast.Node, helper string, deep int) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false // unless it is called: see enter
		case *ast.BlockStmt:
			for _, s := range n.List {
				w.walk(s, at, helper, deep)
				if branch, ok := s.(*ast.IfStmt); ok && w.comparesTx(branch.Cond) == token.NEQ && leavesFunction(branch.Body) {
					break // what follows runs without a transaction
				}
			}
			return false
		case *ast.IfStmt:
			op := w.comparesTx(n.Cond)
			if op == token.ILLEGAL {
				return true
			}
			if n.Init != nil {
				w.walk(n.Init, at, helper, deep)
			}
			if op == token.NEQ {
				w.walk(n.Body, at, helper, deep)
			} else if n.Else != nil {
				w.walk(n.Else, at, helper, deep)
			}
			return false
		case *ast.CallExpr:
			place := at
			if place == nil {
				place = n
			}
			w.visit(call{n, w.guard, place, helper, w.bound})
			w.enter(n, place, at, helper, deep)
		case *ast.AssignStmt: // q := queries.WithTx(tx), tx := db
			if len(n.Lhs) == len(n.Rhs) {
				for i, from := range n.Rhs {
					if v := w.variable(n.Lhs[i]); v != nil && w.fromTx(from) {
						w.bound[v] = true
					}
				}
			}
		}
		return true
	})
}

// comparesTx returns the operator of a condition that compares the transaction with
// nil: token.NEQ holds here, and token.EQL does not.
func (w *walker) comparesTx(cond ast.Expr) token.Token {
	compared, ok := ast.Unparen(cond).(*ast.BinaryExpr)
	if !ok || w.guard.txOf == nil || compared.Op != token.NEQ && compared.Op != token.EQL {
		return token.ILLEGAL
	}
	for _, pair := range [][2]ast.Expr{{compared.X, compared.Y}, {compared.Y, compared.X}} {
		v := w.variable(pair[0]) // and not what the transaction returned
		if v != nil && w.bound[v] && types.Identical(v.Type(), w.guard.txOf) && w.info.Types[pair[1]].IsNil() {
			return compared.Op
		}
	}
	return token.ILLEGAL
}

// leavesFunction reports whether a block ends with a return.
func leavesFunction(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	_, ok := b.List[len(b.List)-1].(*ast.ReturnStmt)
	return ok
}

// enter walks through what a call runs.
func (w *walker) enter(n *ast.CallExpr, place, at ast.Node, helper string, deep int) {
	if lit, ok := ast.Unparen(n.Fun).(*ast.FuncLit); ok {
		w.walk(lit.Body, at, helper, deep)
	}
	if _, _, guarded := w.guardOf(n); guarded {
		return
	}
	callee := w.callee(n)
	decl := w.decls[callee]
	for i, arg := range n.Args {
		if lit, ok := ast.Unparen(arg).(*ast.FuncLit); ok && (runsArgs(callee) || decl != nil && w.runs(decl, i)) {
			w.walk(lit.Body, at, helper, deep)
		}
	}
	if deep == depth {
		return
	}
	if decl != nil && !w.seen[decl] {
		w.seen[decl] = true
		w.bind(n, function{decl, decl.Type, decl.Body})
		if helper != "" {
			w.walk(decl.Body, place, helper, deep+1)
		} else {
			w.walk(decl.Body, place, decl.Name.Name, deep+1)
		}
		return
	}
	if v, ok := w.object(n.Fun).(*types.Var); ok {
		value, ok := w.only(v)
		if lit, isLit := value.(*ast.FuncLit); ok && isLit && !w.seen[lit] {
			w.seen[lit] = true
			w.bind(n, function{lit, lit.Type, lit.Body})
			w.walk(lit.Body, place, v.Name(), deep+1)
		}
	}
}

// bind notes which parameters of a helper are the transaction.
func (w *walker) bind(n *ast.CallExpr, f function) {
	for i, arg := range n.Args {
		if w.fromTx(arg) {
			if p, _ := w.parameter(f, i); p != nil {
				w.bound[p] = true
			}
		}
	}
}

// fromTx reports whether an expression is the transaction, or made from it.
func (w *walker) fromTx(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && w.bound[w.info.ObjectOf(id)] {
			found = true
		}
		_, lit := n.(*ast.FuncLit)
		return !found && !lit
	})
	return found
}

// runsArgs reports whether a function runs the closures that it gets before, or
// soon after, it returns.
func runsArgs(f *types.Func) bool {
	if f == nil || f.Pkg() == nil {
		return false
	}
	switch path := unversioned(f.Pkg().Path()); path {
	case "sync", "slices", "maps", "sort", "strings", "time", "context", "golang.org/x/sync/errgroup",
		"github.com/jackc/pgx",
		"github.com/cenkalti/backoff", "github.com/avast/retry-go":
		return true
	}
	return false
}

// runs reports whether a function of this package calls its parameter.
func (x *index) runs(decl *ast.FuncDecl, place int) bool {
	p, _ := x.parameter(function{decl, decl.Type, decl.Body}, place)
	found := false
	if p != nil {
		ast.Inspect(decl.Body, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok && x.object(c.Fun) == p {
				found = true
			}
			return !found
		})
	}
	return found
}
