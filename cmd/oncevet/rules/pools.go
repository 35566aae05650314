package rules

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// pools is what a package says about where its pools of connections come from. A
// program may have pools of several databases, and the transaction takes the place
// of the store's pool only.
type pools struct {
	sources map[*types.Var][]ast.Expr // what variables, fields and parameters are set to; nil: unknown
	given   map[*types.Var]bool       // pools that stores get, and the variables that these come from
	stores  map[bool]map[string]bool  // names of the pools that stores get; the key: they are of pgx
	names   map[bool]map[string]bool  // names of all pools
}

// certainty says how sure it is that a pool is that of the store.
type certainty int

const (
	unsure  certainty = iota // it may be of another database
	likely                   // the package has no other, and its store is made elsewhere
	certain                  // a store of this package gets it
)

// isStores says how sure it is that a pool is that of the store.
func (x *index) isStores(pool ast.Expr) certainty {
	from, pgx := x.origins(pool), ofPgx(x.typeOf(pool))
	switch {
	case len(from) == 0 || len(x.pools.stores[pgx]) > 1: // of which store is this transaction?
		return unsure
	case slices.ContainsFunc(from, func(v *types.Var) bool { return x.pools.given[v] }):
		return certain
	case len(x.pools.stores[pgx]) == 0 && len(x.pools.names[pgx]) == 1:
		return likely
	}
	return unsure
}

// findPools notes where the pools of the package come from, and which of them
// stores get.
func (x *index) findPools() {
	x.pools = pools{map[*types.Var][]ast.Expr{}, map[*types.Var]bool{},
		map[bool]map[string]bool{false: {}, true: {}}, map[bool]map[string]bool{false: {}, true: {}}}
	set := func(o types.Object, to ast.Expr) {
		if v, ok := o.(*types.Var); ok && isPool(v.Type()) {
			x.pools.sources[v.Origin()] = append(x.pools.sources[v.Origin()], to)
		}
	}
	for o, sources := range x.vars {
		for _, s := range sources {
			set(o, s.expr)
		}
	}
	var given []ast.Expr
	for at := range x.cursor.Preorder((*ast.CallExpr)(nil), (*ast.CompositeLit)(nil), (*ast.AssignStmt)(nil)) {
		switch n := at.Node().(type) {
		case *ast.CallExpr:
			if (x.is(n, "store/sqlstore.New") || x.is(n, "store/pgstore.New")) && len(n.Args) > 0 {
				given = append(given, n.Args[0])
			}
			if decl := x.decls[x.callee(n)]; decl != nil {
				for i, arg := range n.Args {
					if p, _ := x.parameter(function{decl, decl.Type, decl.Body}, i); p != nil {
						set(p, arg)
					}
				}
			}
		case *ast.CompositeLit:
			for i, elt := range n.Elts {
				if pair, ok := elt.(*ast.KeyValueExpr); ok {
					set(x.object(pair.Key), pair.Value)
				} else if of, ok := x.typeOf(n).Underlying().(*types.Struct); ok && i < of.NumFields() {
					set(of.Field(i), elt)
				}
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if sel, ok := ast.Unparen(to).(*ast.SelectorExpr); ok {
					set(x.object(sel), n.Rhs[min(i, len(n.Rhs)-1)])
				}
			}
		}
	}
	for _, pool := range given {
		name := "" // made in place: New(open(), …)
		for _, v := range x.origins(pool) {
			x.pools.given[v], name = true, strings.ToLower(v.Name())
		}
		x.pools.stores[ofPgx(x.typeOf(pool))][name] = true
	}
	for _, objects := range []map[*ast.Ident]types.Object{x.info.Defs, x.info.Uses} {
		for id, o := range objects {
			v, ok := o.(*types.Var)
			if !ok || v.Name() == "_" || !isPool(v.Type()) || v.Embedded() && v.Pkg() != x.pkg {
				continue
			}
			if from := x.origins(id); len(from) > 0 {
				last := from[len(from)-1]
				x.pools.names[ofPgx(last.Type())][strings.ToLower(last.Name())] = true
			}
		}
	}
}

// origins returns the variable, field or parameter that a pool is, and those that
// it comes from, as far as each is set to one thing only.
func (x *index) origins(pool ast.Expr) (from []*types.Var) {
	for {
		v := x.poolOf(pool)
		if v == nil || slices.Contains(from, v) {
			return from
		}
		from = append(from, v)
		sources := x.pools.sources[v]
		if len(sources) == 0 || slices.ContainsFunc(sources, func(e ast.Expr) bool {
			return x.poolOf(e) != x.poolOf(sources[0])
		}) {
			return from
		}
		pool = sources[0]
	}
}

// poolOf returns the variable, field or parameter that a pool is, or that it is
// another face of: db of bun.NewDB(db, dialect), and x of x.DB.
func (x *index) poolOf(e ast.Expr) *types.Var {
	if e == nil {
		return nil
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.SelectorExpr:
		if isPool(x.typeOf(e.X)) {
			return x.poolOf(e.X)
		}
	case *ast.CallExpr:
		f := x.callee(e)
		if f == nil || f.Pkg() == nil || len(e.Args) == 0 {
			return nil
		}
		switch unversioned(f.Pkg().Path()) + "." + f.Name() {
		case "github.com/uptrace/bun.NewDB", "github.com/jmoiron/sqlx.NewDb":
			return x.poolOf(e.Args[0])
		}
		return nil
	}
	v, _ := x.object(e).(*types.Var)
	if v == nil || !isPool(v.Type()) {
		return nil
	}
	return v.Origin()
}

// isPool reports whether a type is that of pools of connections.
func isPool(t types.Type) bool {
	switch path, name := named(t); path + "." + name {
	case "database/sql.DB", "github.com/jmoiron/sqlx.DB", "github.com/uptrace/bun.DB",
		"github.com/jackc/pgx/pgxpool.Pool":
		return true
	}
	return false
}

// ofPgx reports whether a pool is one of pgx, and not of database/sql.
func ofPgx(pool types.Type) bool {
	path, _ := named(pool)
	return strings.HasPrefix(path, "github.com/jackc/pgx")
}
