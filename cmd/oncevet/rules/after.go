package rules

import (
	"go/ast"
	"go/constant"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ast/inspector"
)

var afterGuard = rule{"afterguard", `report handlers that go on after the response

After the guard of httponce has responded, with a recorded response or a refusal,
a handler around it that writes or works on does so for every repeat as well. The
same holds for a guarded handler that goes on after http.Error because a return is
missing. In gin and echo, a guard needs an adapter: see
docs/http.md.`, func(c *checker) {
	for at := range c.root().Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		c.afterServe(at, call)
		c.wrapped(at, call)
	}
	for _, g := range c.guards {
		if g.kind == request {
			c.ginNext(g)
		}
		if w := c.writer(g.work); w != nil && (g.kind == request || g.api == "httponce.HandlerTx") {
			c.missingReturn(g.work.body, w, g.tx)
		}
	}
	for at := range c.root().Preorder((*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		f := functionOf(at.Node())
		if w := c.writer(f); w != nil && f.body != nil && c.callsGuard(f.body) {
			c.missingReturn(f.body, w, nil)
		}
	}
}}

func functionOf(n ast.Node) function {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return function{n, n.Type, n.Body}
	case *ast.FuncLit:
		return function{n, n.Type, n.Body}
	}
	return function{}
}

// writer returns the http.ResponseWriter that a function gets.
func (c *checker) writer(f function) types.Object {
	for _, field := range f.typ.Params.List {
		if path, name := named(c.typeOf(field.Type)); path == "net/http" && name == "ResponseWriter" {
			for _, id := range field.Names {
				if id.Name != "_" {
					return c.info.Defs[id]
				}
			}
		}
	}
	return nil
}

// callsGuard reports whether a function calls once.Do or once.DoTx itself.
func (c *checker) callsGuard(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && c.is(call, "Do", "DoTx", "InTx") {
			found = true
		}
		_, lit := n.(*ast.FuncLit)
		return !found && !lit
	})
	return found
}

// isGuard reports whether a handler is a guard of httponce, as far as this
// function shows.
func (c *checker) isGuard(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.CallExpr:
		if c.is(e, "httponce.Handler", "httponce.HandlerTx") {
			return true
		}
		return c.isMiddleware(e.Fun)
	case *ast.Ident:
		if v := c.variable(e); v != nil {
			if value, ok := c.only(v); ok {
				return c.isGuard(value)
			}
		}
	}
	return false
}

// isMiddleware reports whether an expression is the result of
// httponce.Middleware.
func (c *checker) isMiddleware(e ast.Expr) bool {
	switch e := ast.Unparen(e).(type) {
	case *ast.CallExpr:
		return c.is(e, "httponce.Middleware")
	case *ast.Ident:
		if v := c.variable(e); v != nil {
			if value, ok := c.only(v); ok {
				return c.isMiddleware(value)
			}
		}
	}
	return false
}

// afterServe reports what comes after guard.ServeHTTP(w, r) in the same block and
// writes to w.
func (c *checker) afterServe(at inspector.Cursor, call *ast.CallExpr) {
	on := c.receiver(call)
	if on == nil || len(call.Args) != 2 || c.callee(call) == nil || c.callee(call).Name() != "ServeHTTP" ||
		!c.isGuard(on) {
		return
	}
	w := c.variable(call.Args[0])
	if w == nil {
		return
	}
	statement := at.Parent()
	if _, ok := statement.Node().(*ast.ExprStmt); !ok {
		return
	}
	for next, ok := statement.NextSibling(); ok; next, ok = next.NextSibling() {
		if _, ends := next.Node().(*ast.ReturnStmt); ends {
			return
		}
		if write := c.writes(next.Node(), w); write != nil {
			c.report(write, nil, "%s comes after the guard has responded, also for a repeat: do it inside the guard",
				shown(write))
			return
		}
	}
}

// writes returns the first call in a node that writes a response to w, or hands
// it to another handler.
func (c *checker) writes(n ast.Node, w types.Object) (found *ast.CallExpr) {
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if found != nil || !ok {
			_, lit := n.(*ast.FuncLit)
			return found == nil && !lit
		}
		f := c.callee(call)
		if f == nil {
			return true
		}
		if on := c.receiver(call); on != nil && c.object(on) == w && (f.Name() == "Write" || f.Name() == "WriteHeader") {
			found = call
		}
		for _, arg := range call.Args {
			if c.object(arg) == w && (f.Pkg() == nil || f.Pkg().Path() != "net/http" ||
				f.Name() != "NewResponseController") {
				found = call
			}
		}
		return found == nil
	})
	return found
}

// responds reports whether a statement writes a whole response to w, after which
// a handler returns.
func (c *checker) responds(s ast.Stmt, w types.Object) (shownAs string, ok bool) {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return "", false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok {
		return "", false
	}
	if !slices.ContainsFunc(call.Args, func(arg ast.Expr) bool { return c.object(arg) == w }) {
		return "", false
	}
	f := c.callee(call)
	if f == nil || f.Pkg() == nil {
		return "", false
	}
	if f.Pkg().Path() == "net/http" {
		return shown(call), slices.Contains([]string{"Error", "NotFound", "Redirect"}, f.Name())
	}
	if slices.ContainsFunc(call.Args, c.isRefusal) { // refuse(w, http.StatusBadRequest, "why")
		return shown(call), true
	}
	return shown(call), c.refuses(c.decls[f])
}

// refusesBy reports whether a statement sets the status of a refusal, and one of
// those after it writes the body. Without a body, the handler may go on to write it.
func (c *checker) refusesBy(s ast.Stmt, then []ast.Stmt, w types.Object) (shownAs string, ok bool) {
	e, ok := s.(*ast.ExprStmt)
	if !ok {
		return "", false
	}
	call, ok := e.X.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 || !c.isRefusal(call.Args[0]) {
		return "", false
	}
	on, f := c.receiver(call), c.callee(call)
	if on == nil || c.object(on) != w || f == nil || f.Name() != "WriteHeader" {
		return "", false
	}
	return shown(call), slices.ContainsFunc(then, func(s ast.Stmt) bool { return c.writes(s, w) != nil })
}

// refuses reports whether a function of this package responds with an error in any
// case.
func (c *checker) refuses(decl *ast.FuncDecl) bool {
	if decl == nil {
		return false
	}
	w := c.writer(functionOf(decl))
	return w != nil && slices.ContainsFunc(decl.Body.List, func(s ast.Stmt) bool {
		call, ok := s.(*ast.ExprStmt)
		if !ok {
			return false
		}
		inner, ok := call.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		f := c.callee(inner)
		return f != nil && f.FullName() == "net/http.Error" && c.object(inner.Args[0]) == w
	})
}

// isRefusal reports whether an argument is the status of a refusal.
func (c *checker) isRefusal(arg ast.Expr) bool {
	v := c.info.Types[arg].Value
	if v == nil || v.Kind() != constant.Int {
		return false
	}
	status, exact := constant.Int64Val(v)
	return exact && status >= 400 && status < 600
}

// missingReturn reports branches that respond with an error and do not return,
// although the handler goes on to respond, or to write rows.
func (c *checker) missingReturn(body *ast.BlockStmt, w, tx types.Object) {
	at, ok := c.cursor.FindNode(body)
	if !ok {
		return
	}
	for branch := range at.Preorder((*ast.IfStmt)(nil), (*ast.CaseClause)(nil)) {
		var list []ast.Stmt
		switch n := branch.Node().(type) {
		case *ast.IfStmt:
			if n.Else != nil {
				continue
			}
			list = n.Body.List
		case *ast.CaseClause:
			list = n.Body
		}
		if len(list) == 0 || c.inOther(branch, body) || c.leaves(list[len(list)-1]) {
			continue
		}
		response, call := ast.Stmt(nil), ""
		for i, s := range list {
			if name, ok := c.responds(s, w); ok {
				response, call = s, name
			} else if name, ok := c.refusesBy(s, list[i+1:], w); ok {
				response, call = s, name
			}
		}
		if response == nil {
			continue
		}
		around := branch
		if _, clause := branch.Node().(*ast.CaseClause); clause {
			around = branch.Parent().Parent() // the switch around its body
		}
		for next, ok := around.NextSibling(); ok; next, ok = next.NextSibling() {
			if _, statement := next.Node().(ast.Stmt); !statement {
				break
			}
			if c.goesOn(next.Node(), w, tx) {
				c.report(response, nil, "the handler goes on after %s: a return is missing", call)
				break
			}
			if _, ends := next.Node().(*ast.ReturnStmt); ends {
				break
			}
		}
	}
}

// leaves reports whether control does not go past a statement.
func (c *checker) leaves(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		if b, ok := c.object(call.Fun).(*types.Builtin); ok {
			return b.Name() == "panic"
		}
		f := c.callee(call)
		return f != nil && (f.FullName() == "os.Exit" || f.FullName() == "runtime.Goexit" ||
			f.FullName() == "log.Fatal" || f.FullName() == "log.Fatalf")
	}
	return false
}

// inOther reports whether a node is in a closure inside a function.
func (c *checker) inOther(at inspector.Cursor, body *ast.BlockStmt) bool {
	for around := range at.Enclosing((*ast.FuncLit)(nil), (*ast.FuncDecl)(nil)) {
		return functionOf(around.Node()).body != body
	}
	return true
}

// goesOn reports whether a statement responds once more, uses the transaction, or
// guards work.
func (c *checker) goesOn(n ast.Node, w, tx types.Object) (found bool) {
	if c.writes(n, w) != nil {
		return true
	}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.Ident:
			found = found || tx != nil && c.info.Uses[n] == tx
		case *ast.CallExpr:
			found = found || c.is(n, "Do", "DoTx", "InTx")
		}
		return !found
	})
	return found
}

// ginNext reports c.Next() of gin inside a guarded handler.
func (c *checker) ginNext(g *guard) {
	c.calls(g, func(call call) {
		f := c.callee(call.CallExpr)
		if f == nil || f.Name() != "Next" || f.Signature().Recv() == nil || len(call.Args) != 0 {
			return
		}
		if path, name := named(f.Signature().Recv().Type()); path == "github.com/gin-gonic/gin" && name == "Context" {
			c.report(call.at, nil,
				"%s%s runs the handlers with gin's writer, so that the guard records an empty response, and gin goes on after a replay: "+
					"put the guarded routes into an inner engine, as docs/http.md shows", shown(call.CallExpr), call.in())
		}
	})
}

// wrapped reports a guard that echo gets as a middleware without the handler that
// turns errors into responses.
func (c *checker) wrapped(at inspector.Cursor, call *ast.CallExpr) {
	f := c.callee(call)
	if f == nil || f.Pkg() == nil || unversioned(f.Pkg().Path()) != "github.com/labstack/echo" ||
		f.Name() != "WrapMiddleware" ||
		len(call.Args) != 1 || !c.isMiddleware(call.Args[0]) {
		return
	}
	if around, ok := at.Parent().Node().(*ast.CallExpr); ok && around.Fun != call {
		c.report(call, nil,
			"echo responds to a returned error after the guard has ended, so that the guard records an empty 200: "+
				"respond inside the guard, as docs/http.md shows")
	}
}
