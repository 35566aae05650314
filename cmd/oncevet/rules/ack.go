package rules

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
)

var earlyAck = rule{"earlyack", `report deliveries that are settled before their work is recorded

A message that is acknowledged inside the handler of inbox, inside the work of
once.Do, once.DoTx or once.InTx, or before such a call, is gone if the process dies
before the commit, or if the commit fails. In a handler of inbox leave it to the
consumer. In a loop of your own acknowledge after the call has returned nil.`, func(c *checker) {
	for _, g := range c.guards {
		if g.kind == request {
			continue
		}
		c.calls(g, func(call call) {
			if !c.matches(call.CallExpr, acks) || c.isPipeline(call.CallExpr) {
				return
			}
			use := "acknowledge after " + g.api + " has returned nil"
			if path, _ := named(c.typeOf(g.call)); path == once+"/inbox" {
				use = "leave it to the consumer, which acknowledges after the commit"
			}
			c.report(call.at, nil, "%s%s settles the message inside %s, before its work is recorded: %s",
				shown(call.CallExpr), call.in(), g.api, use)
		})
	}
	for at := range c.root().Preorder((*ast.CallExpr)(nil)) {
		if call := at.Node().(*ast.CallExpr); c.matches(call, acks) {
			c.ackBeforeGuard(at, call)
		}
	}
}}

// ackBeforeGuard reports an acknowledgement after which, in the same block, the
// message is handled by guarded work.
func (c *checker) ackBeforeGuard(at inspector.Cursor, ack *ast.CallExpr) {
	var ackName string
	if f := c.callee(ack); f != nil {
		ackName = f.Name()
	}
	switch ackName {
	case "Nack", "Nak", "NakWithDelay", "Return", "Reject", "Term", "TermWithReason", "AbandonMessage",
		"DeferMessage", "DeadLetterMessage":
		return // not an acknowledgement
	}
	for around := range at.Enclosing((*ast.ExprStmt)(nil), (*ast.AssignStmt)(nil), (*ast.IfStmt)(nil),
		(*ast.FuncLit)(nil), (*ast.DeferStmt)(nil),
		(*ast.GoStmt)(nil)) {
		switch s := around.Node().(type) {
		case *ast.FuncLit, *ast.GoStmt:
			return
		case *ast.DeferStmt: // defer d.Ack(false)
			for next, ok := around.NextSibling(); ok; next, ok = next.NextSibling() {
				if guard := c.guardOn(next, c.messages(ack)); guard != "" {
					c.report(ack, nil, "%s acknowledges the message also if %s fails: acknowledge after it has returned nil",
						shown(ack), guard)
					return
				}
			}
			return
		case *ast.IfStmt:
			if s.Init == nil || !(s.Init.Pos() <= ack.Pos() && ack.End() <= s.Init.End()) {
				return // it is in a branch, or in the condition
			}
		}
		for before, ok := around.PrevSibling(); ok; before, ok = before.PrevSibling() {
			if _, begins := before.Node().(*ast.GoStmt); !begins {
				continue
			}
			if guard := c.guardOn(before, c.messages(ack)); guard != "" {
				c.report(ack, nil, "%s acknowledges the message while %s handles it in a goroutine: "+
					"acknowledge there, after it has returned nil", shown(ack), guard)
				return
			}
		}
		for next, ok := around.NextSibling(); ok; next, ok = next.NextSibling() {
			if guard := c.guardOn(next, c.messages(ack)); guard != "" {
				c.report(ack, nil,
					"%s acknowledges the message before %s has recorded its work: acknowledge after it has returned nil",
					shown(ack), guard)
				return
			}
		}
		if _, simple := around.Node().(*ast.IfStmt); simple {
			return
		}
		if kind, _ := around.ParentEdge(); kind.String() != "IfStmt.Init" {
			return
		}
	}
}

// messages returns the variables that an acknowledgement is about: what it is a
// method of, and its arguments.
func (c *checker) messages(ack *ast.CallExpr) map[types.Object]bool {
	all := map[types.Object]bool{}
	consider := func(e ast.Node) {
		ast.Inspect(e, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if v, ok := c.info.Uses[id].(*types.Var); ok && !v.IsField() && c.local(v) {
					if t := v.Type().String(); t != "context.Context" && t != "error" {
						all[v] = true
					}
				}
			}
			return true
		})
	}
	if len(ack.Args) == 0 || c.isBasic(ack.Args[0]) { // d.Ack(false), m.Ack()
		if on := c.receiver(ack); on != nil {
			consider(on)
		}
	}
	for _, arg := range ack.Args {
		consider(arg)
	}
	return all
}

func (c *checker) isBasic(e ast.Expr) bool {
	_, basic := c.typeOf(e).Underlying().(*types.Basic)
	return basic
}

// guardOn returns the API of guarded work about one of the messages, in a node.
func (c *checker) guardOn(at inspector.Cursor, messages map[types.Object]bool) (api string) {
	for n := range at.Preorder((*ast.CallExpr)(nil)) {
		call := n.Node().(*ast.CallExpr)
		called := c.guardIn(call)
		if called == "" {
			continue
		}
		ast.Inspect(call, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && messages[c.info.Uses[id]] {
				api = called
			}
			return api == ""
		})
	}
	return api
}

// guardIn returns the API of guarded work that a call is, or that a function of
// this package makes which it calls.
func (c *checker) guardIn(call *ast.CallExpr) (api string) {
	if name, api, ok := c.guardOf(call); ok {
		if name == "Do" || name == "DoTx" || name == "InTx" {
			return api
		}
		return ""
	}
	decl := c.decls[c.callee(call)]
	if decl == nil {
		return ""
	}
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		if inner, ok := n.(*ast.CallExpr); ok && c.is(inner, "Do", "DoTx", "InTx") {
			_, api, _ = c.guardOf(inner)
		}
		_, lit := n.(*ast.FuncLit)
		return api == "" && !lit
	})
	return api
}
