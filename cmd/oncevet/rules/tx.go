package rules

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

var txEffect = rule{"txeffect", `report effects outside the database in a transaction

The work of once.DoTx, once.InTx, inbox.Tx, inbox.Batch and httponce.HandlerTx,
and the rows of inbox.DoThenTx, may run again after a conflict, and may be rolled
back. A request to another system is then sent twice, or for nothing. The rule
finds requests of net/http, generated RPC clients, the SDKs of AWS, Azure, Google
and Stripe, Redis, MongoDB, mail, and writes to a database that is not that of the
transaction.`, func(c *checker) {
	for _, g := range c.guards {
		if g.kind != inTx {
			continue
		}
		c.calls(g, func(call call) {
			switch {
			case c.matches(call.CallExpr, publishes) || c.matches(call.CallExpr, acks):
			case c.isEffect(call.CallExpr):
				c.report(call.at, nil, "%s%s leaves the database inside %s, which may roll back or run again: "+
					"call it in once.Do before the transaction, or put a message into the outbox", shown(call.CallExpr),
					call.in(), g.api)
			case c.isPoolCall(call, otherPool):
				c.report(call.at, nil, "%s%s writes to another database inside %s, whose rollback does not undo it: "+
					"call it in once.Do before the transaction, or put a message into the outbox", shown(call.CallExpr),
					call.in(), g.api)
			}
		})
	}
}}

var txPool = rule{"txpool", `report statements through the pool instead of the transaction

A statement that the work of once.DoTx, once.InTx, inbox.Tx, inbox.Batch or
httponce.HandlerTx sends through *sql.DB, *sqlx.DB, *bun.DB, *gorm.DB or
*pgxpool.Pool, or through queries of sqlc that are not made by WithTx, is not part
of the transaction. It
stays when the transaction is rolled back, happens again when it is repeated, does
not see its rows, and waits for a second connection of the pool. A pool that may be
of another database is not reported.`, func(c *checker) {
	for _, g := range c.guards {
		if g.kind != inTx {
			continue
		}
		c.calls(g, func(call call) {
			if c.isPoolCall(call, ownPool) {
				c.report(call.at, c.useTx(call), "%s%s is not part of the transaction of %s: %s", shown(call.CallExpr),
					call.in(), g.api, c.instead(g))
			}
			if on := c.receiver(call.CallExpr); on != nil && c.isBoundElsewhere(call, on) {
				c.report(call.at, nil, "%s%s is not part of the transaction of %s: use %s.WithTx", shown(call.CallExpr),
					call.in(), g.api, c.text(on))
			}
			if db := c.gormElsewhere(call); db != nil {
				c.report(call.at, nil, "%s is not part of the transaction of %s: give %s the transaction as its ConnPool",
					shown(call.CallExpr), g.api, c.text(db))
			}
			for i, arg := range call.Args {
				if c.isPassedPool(call, i, arg) {
					var fix []analysis.SuggestedFix
					if g.tx != nil && call.helper == "" && c.isStores(arg) == certain &&
						types.AssignableTo(g.tx.Type(), c.parameterType(call.CallExpr, i)) {
						fix = replace(arg, g.tx.Name(), "Pass the transaction")
					}
					at := call.at
					if call.helper == "" {
						at = arg
					}
					c.report(at, fix, "%s%s gets %s, which is not part of the transaction of %s: %s", shown(call.CallExpr),
						call.in(), c.text(arg), g.api,
						c.instead(g))
				}
			}
		})
	}
}}

// instead says what to use instead of a pool.
func (c *checker) instead(g *guard) string {
	if g.tx != nil {
		return "use " + g.tx.Name()
	}
	return "use the transaction"
}

// whose says whose pool is looked for.
type whose int

const (
	ownPool   whose = iota // of the transaction's kind of database: every statement
	otherPool              // of another database: what changes it
)

// statements are the methods of pools that send a statement or take a
// connection for some.
var statements = strings.Fields(`
	Exec ExecContext Query QueryContext QueryRow QueryRowContext Prepare PrepareContext Begin BeginTx
	BeginFunc BeginTxFunc Conn SendBatch CopyFrom Acquire AcquireFunc NamedExec NamedExecContext
	NamedQuery NamedQueryContext Get GetContext Select SelectContext Queryx QueryxContext QueryRowx
	QueryRowxContext MustExec MustExecContext MustBegin Beginx BeginTxx Preparex PreparexContext
	NewSelect NewInsert NewUpdate NewDelete NewMerge NewRaw RunInTx`)

// writes are those that surely, or most often, change something.
var writes = strings.Fields(`
	Exec ExecContext Begin BeginTx BeginFunc BeginTxFunc SendBatch CopyFrom NamedExec NamedExecContext
	MustExec MustExecContext MustBegin Beginx BeginTxx NewInsert NewUpdate NewDelete NewMerge RunInTx`)

// isPoolCall reports whether a call is a statement through a pool.
func (c *checker) isPoolCall(call call, whose whose) bool {
	on := c.receiver(call.CallExpr)
	f := c.callee(call.CallExpr)
	if on == nil || f == nil || !isPool(c.typeOf(on)) || c.bindsTo(call, on) {
		return false
	}
	if own := c.likeTx(call.guard, c.typeOf(on)); whose == ownPool {
		return own && slices.Contains(statements, f.Name()) && c.isStores(on) != unsure
	} else {
		return !own && slices.Contains(writes, f.Name())
	}
}

// bindsTo reports whether an expression is the transaction or made from it.
func (c *checker) bindsTo(call call, e ast.Expr) bool {
	w := walker{index: c.index, bound: call.bound}
	return w.fromTx(e)
}

// likeTx reports whether a pool is of the same kind of database as the
// transaction, so that there is a statement of the transaction to use instead.
func (c *checker) likeTx(g *guard, pool types.Type) bool {
	path, name := named(g.txOf)
	switch {
	case path == "" || g.txOf == nil:
		return true // a type parameter
	case ofPgx(pool):
		return strings.HasPrefix(path, "github.com/jackc/pgx")
	default:
		return path == "database/sql" && name == "Tx" || strings.HasPrefix(path, "github.com/jmoiron/sqlx") ||
			strings.HasPrefix(path, "github.com/uptrace/bun") || strings.HasPrefix(path, "gorm.io/")
	}
}

// useTx is the fix that calls the same method of the transaction, if that has the
// same signature and the pool is certainly the store's.
func (c *checker) useTx(call call) []analysis.SuggestedFix {
	g, f := call.guard, c.callee(call.CallExpr)
	if _, named := c.object(call.Fun).(*types.Func); !named {
		return nil // it is called under another name
	}
	if g.tx == nil || call.helper != "" || g.txOf == nil || c.isStores(c.receiver(call.CallExpr)) != certain {
		return nil
	}
	o, _, _ := types.LookupFieldOrMethod(g.txOf, true, c.pkg, f.Name())
	m, ok := o.(*types.Func)
	if !ok || !types.Identical(withoutReceiver(m), withoutReceiver(f)) {
		return nil
	}
	return replace(c.receiver(call.CallExpr), g.tx.Name(), "Use the transaction")
}

func withoutReceiver(f *types.Func) *types.Signature {
	s := f.Signature()
	return types.NewSignatureType(nil, nil, nil, s.Params(), s.Results(), s.Variadic())
}

// isBoundElsewhere reports whether a call is one of the queries that sqlc has
// generated, of a variable that has no transaction: its type has the method
// WithTx, and it is made outside of the work.
func (c *checker) isBoundElsewhere(call call, on ast.Expr) bool {
	f, g := c.callee(call.CallExpr), call.guard
	if f == nil || f.Name() == "WithTx" || g.api == "once.InTx" || g.txOf == nil || c.bindsTo(call, on) {
		return false
	}
	t := c.typeOf(on)
	o, _, _ := types.LookupFieldOrMethod(t, true, c.pkg, "WithTx")
	with, ok := o.(*types.Func)
	if !ok || !takesContext(f.Signature()) {
		return false
	}
	s := with.Signature()
	if s.Params().Len() != 1 || s.Results().Len() != 1 || !types.Identical(s.Params().At(0).Type(), g.txOf) ||
		!types.Identical(s.Results().At(0).Type(), t) {
		return false
	}
	return c.comesFromOutside(call, on)
}

// comesFromOutside reports whether a variable, or a field of one, is declared
// outside of the work that uses it.
func (c *checker) comesFromOutside(call call, e ast.Expr) bool {
	work := call.guard.work
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		v := c.variable(e)
		return v != nil && !(work.node.Pos() <= v.Pos() && v.Pos() < work.node.End()) && call.helper == ""
	case *ast.SelectorExpr: // s.queries, where s may be the receiver of the work
		v := c.variable(e.X)
		return v != nil && !(work.body.Pos() <= v.Pos() && v.Pos() < work.body.End()) && call.helper == ""
	}
	return false
}

// finishers are the methods of gorm that send a statement.
var finishers = strings.Fields(`
	Create CreateInBatches Save First FirstOrCreate FirstOrInit Take Last Find FindInBatches Count
	Pluck Scan Row Rows Update Updates UpdateColumn UpdateColumns Delete Exec Transaction Begin`)

// gormElsewhere returns the *gorm.DB of a statement that comes from outside of the
// work, so that it is none of the transaction. In the work of once.InTx it may be.
func (c *checker) gormElsewhere(call call) ast.Expr {
	f := c.callee(call.CallExpr)
	if f == nil || call.guard.api == "once.InTx" || !slices.Contains(finishers, f.Name()) {
		return nil
	}
	on := c.receiver(call.CallExpr)
	for {
		if on == nil {
			return nil
		}
		if path, name := named(c.typeOf(on)); path != "gorm.io/gorm" || name != "DB" || c.bindsTo(call, on) {
			return nil
		}
		chain, ok := ast.Unparen(on).(*ast.CallExpr)
		if !ok {
			break
		}
		if f := c.callee(chain); f == nil || f.Name() == "Session" {
			return nil // which may change the connection
		}
		on = c.receiver(chain)
	}
	if !c.comesFromOutside(call, on) {
		return nil
	}
	return on
}

// isPassedPool reports whether an argument is a pool that the called function
// sends statements through: its parameter is an interface with such a method.
func (c *checker) isPassedPool(call call, i int, arg ast.Expr) bool {
	if !isPool(c.typeOf(arg)) || c.bindsTo(call, arg) || !c.likeTx(call.guard, c.typeOf(arg)) ||
		c.isStores(arg) == unsure {
		return false
	}
	t := c.parameterType(call.CallExpr, i)
	if t == nil || !types.IsInterface(t) {
		return false
	}
	set := types.NewMethodSet(t)
	for m := range set.Methods() {
		if slices.Contains(statements, m.Obj().Name()) {
			return true
		}
	}
	return false
}

// parameterType returns the type of the parameter that takes an argument.
func (c *checker) parameterType(call *ast.CallExpr, i int) types.Type {
	sig, ok := c.typeOf(call.Fun).Underlying().(*types.Signature)
	if !ok {
		return nil
	}
	n := sig.Params().Len()
	if sig.Variadic() && i >= n-1 {
		if slice, ok := sig.Params().At(n - 1).Type().(*types.Slice); ok {
			return slice.Elem()
		}
	}
	if i >= n {
		return nil
	}
	return sig.Params().At(i).Type()
}

var txPublish = rule{"txpublish", `report messages that are published beside a transaction

A message that the work of a transaction hands to the broker is published even if
the transaction is rolled back, and again if it is repeated. Put it into the
outbox, with the transaction.`, func(c *checker) {
	for _, g := range c.guards {
		if g.kind != inTx {
			continue
		}
		c.calls(g, func(call call) {
			if !c.matches(call.CallExpr, publishes) || c.isPipeline(call.CallExpr) {
				return
			}
			use := "put the message into the outbox, with " + c.txName(g)
			if path, _ := named(c.typeOf(c.receiver(call.CallExpr))); path == "github.com/riverqueue/river" {
				use = "use InsertTx"
			}
			c.report(call.at, nil, "%s%s publishes even if %s rolls back, and again if it is repeated: %s",
				shown(call.CallExpr), call.in(), g.api, use)
		})
	}
}}

func (c *checker) txName(g *guard) string {
	if g.tx != nil {
		return g.tx.Name()
	}
	return "its transaction"
}

// isPipeline reports whether a call only adds a command to a pipeline of Redis,
// or to a transaction of redisstore.
func (c *checker) isPipeline(call *ast.CallExpr) bool {
	at := unversioned(c.callee(call).Pkg().Path())
	return (at == "github.com/redis/go-redis" || at == "github.com/go-redis/redis") && !c.changesRedis(call,
		c.callee(call))
}

var doInTx = rule{"dointx", `report once.Do and once.DoTx inside a transaction

Inside the work of a transaction they return once.ErrInTx. With a context of
another origin they would take a second connection, and on SQLite wait for
themselves. Call once.Do before the transaction; for a second key in the same
transaction use once.InTx.`, func(c *checker) {
	for _, g := range c.guards {
		if g.kind != inTx {
			continue
		}
		c.calls(g, func(call call) {
			switch {
			case c.is(call.CallExpr, "Do"):
				c.report(call.at, nil, "once.Do%s inside %s returns once.ErrInTx: call it before the transaction", call.in(),
					g.api)
			case c.is(call.CallExpr, "DoTx"):
				c.report(call.at, nil, "once.DoTx%s inside %s returns once.ErrInTx: use once.InTx with %s", call.in(), g.api,
					c.txName(g))
			}
		})
	}
}}
