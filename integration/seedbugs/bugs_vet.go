package seedbugs

// vetTest runs the rules of oncevet on planted mistakes.
var vetTest = Test{"./cmd/oncevet/rules", "^TestMistakesAreFound$"}

// vetBugs are mistakes in the rules of oncevet.
var vetBugs = []Bug{
	{
		Name: "oncevet-stops-at-the-closure",
		Why:  "an effect that a helper has inside a transaction is not found",
		File: "cmd/oncevet/rules/guard.go",
		Old:  "\tif decl != nil && !w.seen[decl] {",
		New:  "\tif decl != nil && w.seen[decl] {",
		Test: vetTest,
	},
	{
		Name: "oncevet-overlooks-wrappers",
		Why:  "work that is given to a function of the package, which calls DoTx, is not checked",
		File: "cmd/oncevet/rules/guard.go",
		Old:  "\tif wrapper == nil {",
		New:  "\tif wrapper != nil {",
		Test: vetTest,
	},
	{
		Name: "oncevet-takes-the-pool-for-the-transaction",
		Why:  "a statement through another name of the pool is not found",
		File: "cmd/oncevet/rules/guard.go",
		Old:  "if v := w.variable(n.Lhs[i]); v != nil && w.fromTx(from) {",
		New:  "if v := w.variable(n.Lhs[i]); v != nil && !w.fromTx(from) {",
		Test: vetTest,
	},
	{
		Name: "oncevet-forgets-that-ids-are-stored",
		Why:  "a new ID that is stored before it becomes a key is reported",
		File: "cmd/oncevet/rules/unstable.go",
		Old:  "\t\tif t.info.Uses[id] != v || id.Pos() >= t.at.Pos() {",
		New:  "\t\tif t.info.Uses[id] != v || id.Pos() >= 0 {",
		Test: vetTest,
	},
	{
		Name: "oncevet-blames-the-index-of-an-item",
		Why:  "a key that is the ID of items[i] is reported",
		File: "cmd/oncevet/rules/unstable.go",
		Old:  "\t\treturn t.trace(e.X) // and not the index: items[i].ID is the ID of an item",
		New:  "\t\treturn first(t.trace(e.X), t.trace(e.Index))",
		Test: vetTest,
	},
	{
		Name: "oncevet-takes-any-comment-for-a-reason",
		Why:  "a finding is silenced without a reason",
		File: "cmd/oncevet/rules/rules.go",
		Old:  "\tif silenced && reason {",
		New:  "\tif silenced && (reason || true) {",
		Test: vetTest,
	},
	{
		Name: "oncevet-blames-settled-branches",
		Why:  "a message that is acknowledged in a branch that returns is reported",
		File: "cmd/oncevet/rules/ack.go",
		Old:  "\t\tif kind, _ := around.ParentEdge(); kind.String() != \"IfStmt.Init\" {",
		New:  "\t\tif kind, _ := around.ParentEdge(); kind.String() == \"IfStmt.Init\" {",
		Test: vetTest,
	},
	{
		Name: "oncevet-takes-any-pool-for-the-stores",
		Why:  "a query of another database is reported, and the fix sends it to the wrong one",
		File: "cmd/oncevet/rules/pools.go",
		Old:  "len(x.pools.stores[pgx]) == 0 && len(x.pools.names[pgx]) == 1:",
		New:  "len(x.pools.names[pgx]) > 0:",
		Test: vetTest,
	},
	{
		Name: "oncevet-fixes-what-is-only-likely",
		Why:  "the fix replaces a pool that may be of another database",
		File: "cmd/oncevet/rules/tx.go",
		Old:  "c.isStores(c.receiver(call.CallExpr)) != certain {",
		New:  "c.isStores(c.receiver(call.CallExpr)) == unsure {",
		Test: vetTest,
	},
	{
		Name: "oncevet-blames-the-jobs-of-a-day",
		Why:  "a key that names the day is reported",
		File: "cmd/oncevet/rules/unstable.go",
		Old:  "lasting: lasting, periods: lasting,",
		New:  "lasting: lasting, periods: false,",
		Test: vetTest,
	},
	{
		Name: "oncevet-takes-minutes-for-a-period",
		Why:  "a key that contains the minute is not reported",
		File: "cmd/oncevet/rules/unstable.go",
		Old:  "hour.Add(59*time.Minute+58*time.Second+987654321)",
		New:  "hour.Add(987654321)",
		Test: vetTest,
	},
}
