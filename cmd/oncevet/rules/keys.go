package rules

import (
	"go/ast"
	"go/constant"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const unstableKeyName = "unstablekey"

var unstableKey = rule{unstableKeyName, `report keys that are new for each attempt

A key that is made from the time, from random bytes, from a new UUID, from the
number of an attempt or a delivery, or from the index of a loop, is another one
when the work comes again, so that it is done again. Make it from what stays the
same: the ID of the order, of the message, of the item. A key that names an hour,
a day or a longer time is that of a periodic job, and is not reported.`, func(c *checker) {
	for at := range c.root().Preorder((*ast.CallExpr)(nil), (*ast.CompositeLit)(nil), (*ast.AssignStmt)(nil)) {
		switch n := at.Node().(type) {
		case *ast.CallExpr:
			c.keyOfWork(n)
		case *ast.CompositeLit:
			path, name := named(c.typeOf(n))
			for field, value := range c.fields(n) {
				if keyFunc(path, name, field) {
					c.keyFunc(value)
				}
			}
		case *ast.AssignStmt:
			if len(n.Lhs) != len(n.Rhs) {
				continue
			}
			for i, to := range n.Lhs {
				if sel, ok := to.(*ast.SelectorExpr); ok {
					if path, name := named(c.typeOf(sel.X)); keyFunc(path, name, sel.Sel.Name) {
						c.keyFunc(n.Rhs[i])
					}
				}
			}
		}
	}
}}

// keyFunc reports whether a field is a function that makes keys.
func keyFunc(path, typ, field string) bool {
	return field == "Key" &&
		(path == once+"/inbox" && typ == "Consumer" || path == once+"/httponce" && typ == "Options")
}

// fields returns the fields of a struct literal by name.
func (c *checker) fields(lit *ast.CompositeLit) map[string]ast.Expr {
	all := map[string]ast.Expr{}
	t := c.typeOf(lit)
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	of, ok := t.Underlying().(*types.Struct)
	if !ok {
		return nil
	}
	for i, elt := range lit.Elts {
		if pair, ok := elt.(*ast.KeyValueExpr); ok {
			if name, ok := pair.Key.(*ast.Ident); ok {
				all[name.Name] = pair.Value
			}
		} else if i < of.NumFields() {
			all[of.Field(i).Name()] = elt
		}
	}
	return all
}

// keyOfWork checks the arguments of Operation.For and Under, Work.In and Key.Step.
func (c *checker) keyOfWork(call *ast.CallExpr) {
	f := c.callee(call)
	if f == nil || f.Pkg() == nil || f.Pkg().Path() != once || f.Signature().Recv() == nil || len(call.Args) != 1 {
		return
	}
	_, on := named(f.Signature().Recv().Type())
	switch on + "." + f.Name() {
	case "Operation.For", "Work.In", "Key.Step":
		c.unstablePart(call.Args[0], call)
	case "Operation.Under":
		key := ast.Unparen(call.Args[0])
		if v := c.variable(key); v != nil && c.local(v) {
			key, _ = c.only(v)
		}
		if lit, ok := key.(*ast.CompositeLit); ok {
			for _, value := range c.fields(lit) {
				c.unstablePart(value, call)
			}
		}
	}
}

func (c *checker) unstablePart(e ast.Expr, at ast.Node) {
	if what, found := c.unstable(e, at, true); found {
		c.report(e, nil,
			"the key contains %s, so that it is another one when the work comes again, and the work is repeated: "+
				"make it from the ID of what must happen once", what)
	}
}

// keyFunc checks a function that makes keys.
func (c *checker) keyFunc(e ast.Expr) {
	for _, f := range c.functions(e) {
		ast.Inspect(f.body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				return false
			case *ast.ReturnStmt:
				if len(n.Results) > 0 {
					c.unstablePart(n.Results[0], n)
				}
			}
			return true
		})
	}
}

var attemptKey = rule{"attemptkey", `report idempotency keys that are new for each attempt

Guarded work may run again. If it then sends another idempotency key to the other
system, that takes the attempt for a new request, and has the effect twice. Send
key.String(), the key that the work gets, in every attempt.`, func(c *checker) {
	for _, g := range c.guards {
		c.calls(g, func(call call) {
			for _, arg := range c.sentKeys(call.CallExpr) {
				c.attemptKey(g, call, arg)
			}
		})
		ast.Inspect(g.work.body, func(n ast.Node) bool {
			at := call{guard: g, at: n}
			switch n := n.(type) {
			case *ast.AssignStmt:
				if len(n.Lhs) == len(n.Rhs) {
					for i, to := range n.Lhs {
						switch to := to.(type) {
						case *ast.SelectorExpr:
							if isKeyField(to.Sel.Name) {
								c.attemptKey(g, at, n.Rhs[i])
							}
						case *ast.IndexExpr: // header["Idempotency-Key"] = []string{key}
							if c.namesKeyHeader(to.Index) {
								c.attemptKey(g, at, inList(n.Rhs[i]))
							}
						}
					}
				}
			case *ast.CompositeLit:
				for name, value := range c.fields(n) {
					if isKeyField(name) {
						c.attemptKey(g, at, value)
					}
				}
				for _, elt := range n.Elts { // http.Header{"Idempotency-Key": {key}}
					if pair, ok := elt.(*ast.KeyValueExpr); ok && c.namesKeyHeader(pair.Key) {
						c.attemptKey(g, at, inList(pair.Value))
					}
				}
			}
			return true
		})
	}
}}

// isKeyField reports whether a field of this name has the idempotency key of a
// request.
func isKeyField(name string) bool {
	return slices.Contains([]string{"IdempotencyKey", "IdempotencyToken", "ClientToken", "ClientRequestToken",
		"ClientRequestID", "ClientRequestId",
		"MessageDeduplicationId", "PayPalRequestID"}, name)
}

// sentKeys returns the arguments of a call that are sent as an idempotency key.
func (c *checker) sentKeys(call *ast.CallExpr) []ast.Expr {
	f := c.callee(call)
	if f == nil || f.Pkg() == nil {
		return nil
	}
	switch {
	case c.is(call, "httponce.WithKey", "grpconce.WithKey") && len(call.Args) == 2:
		return call.Args[1:]
	case f.Name() == "SetIdempotencyKey" && len(call.Args) == 1:
		return call.Args
	case (f.Name() == "Set" || f.Name() == "Add" || f.Name() == "SetHeader" ||
		f.Name() == "AppendToOutgoingContext") && f.Pkg().Path() != once:
		for i, arg := range call.Args[:max(len(call.Args)-1, 0)] {
			if c.namesKeyHeader(arg) {
				return call.Args[i+1 : i+2]
			}
		}
	}
	return nil
}

// namesKeyHeader reports whether an expression is the name of a header that has the
// idempotency key of a request.
func (c *checker) namesKeyHeader(e ast.Expr) bool {
	v := c.info.Types[e].Value
	return v != nil && v.Kind() == constant.String && isKeyHeader(constant.StringVal(v))
}

// inList returns the value in a list of one.
func inList(e ast.Expr) ast.Expr {
	if lit, ok := ast.Unparen(e).(*ast.CompositeLit); ok && len(lit.Elts) == 1 {
		return lit.Elts[0]
	}
	return e
}

// isKeyHeader reports whether a header of this name has the idempotency key of a
// request.
func isKeyHeader(name string) bool {
	return slices.Contains([]string{"idempotency-key", "x-idempotency-key", "paypal-request-id"},
		strings.ToLower(name))
}

func (c *checker) attemptKey(g *guard, call call, e ast.Expr) {
	what, found := c.unstable(e, e, false)
	if !found {
		return
	}
	var fix []analysis.SuggestedFix
	use := "the key of the work"
	if g.key != nil {
		use = g.key.Name() + ".String()"
		inner := e
		if ptr, ok := e.(*ast.CallExpr); ok && len(ptr.Args) == 1 && !c.info.Types[ptr.Fun].IsType() { // stripe.String(e)
			if _, pointer := c.typeOf(e).(*types.Pointer); pointer {
				inner = ptr.Args[0]
			}
		}
		_, name := e.(*ast.Ident) // without the variable, the program would not compile
		if t, ok := c.typeOf(inner).(*types.Basic); ok && t.Kind() == types.String && call.helper == "" && !name {
			fix = replace(inner, use, "Send the key of the work")
		}
	} else if g.kind != outside {
		use = "a key that once.ClaimFrom(ctx) has"
	}
	at := ast.Node(e)
	if call.helper != "" {
		at = call.at
	}
	c.report(at, fix,
		"the idempotency key%s contains %s, so that the other system takes each attempt of %s for a new request: send %s",
		call.in(), what, g.api, use)
}
