package rules

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"time"
)

// tracer finds what in an expression differs from attempt to attempt.
type tracer struct {
	*index
	at      ast.Node       // where the value is used
	lasting bool           // a variable that may have been stored before is not reported
	allowed []ast.Node     // expressions in which the variables may be used
	seen    []types.Object // variables that were traced
	deep    int            // functions that were entered
	periods bool           // the name of an hour, a day or a longer time is not reported
}

// unstable says what in the value of e, which is used at a node, differs from
// attempt to attempt: "time.Now". If lasting, variables count that cannot have
// been stored before they are used, and no hours and days: a job that runs once a
// day has them in its key.
func (x *index) unstable(e ast.Expr, at ast.Node, lasting bool) (what string, found bool) {
	t := tracer{index: x, at: at, lasting: lasting, periods: lasting, allowed: []ast.Node{e}}
	what = t.trace(e)
	return what, what != ""
}

func (t *tracer) trace(e ast.Expr) string {
	switch e := ast.Unparen(e).(type) {
	case *ast.CallExpr:
		return t.call(e)
	case *ast.BinaryExpr:
		if e.Op == token.ADD || e.Op == token.SUB || e.Op == token.MUL || e.Op == token.QUO || e.Op == token.REM ||
			e.Op == token.XOR {
			return first(t.trace(e.X), t.trace(e.Y))
		}
	case *ast.UnaryExpr:
		return t.trace(e.X)
	case *ast.StarExpr:
		return t.trace(e.X)
	case *ast.SliceExpr:
		return t.trace(e.X)
	case *ast.IndexExpr:
		return t.trace(e.X) // and not the index: items[i].ID is the ID of an item
	case *ast.SelectorExpr:
		return first(t.field(e), t.literal(e))
	case *ast.Ident:
		return t.variable(e)
	}
	return ""
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// fresh lists functions whose result is another one each time.
var fresh = map[string]string{
	"time":                             "Now Since Until",
	"math/rand":                        "*",
	"crypto/rand":                      "Text Int Prime",
	"os":                               "Getpid",
	"github.com/google/uuid":           "New NewString NewRandom NewRandomFromReader NewUUID NewV6 NewV7 NewV7FromReader",
	"github.com/gofrs/uuid":            "NewV1 NewV4 NewV6 NewV7",
	"github.com/satori/go.uuid":        "NewV1 NewV4",
	"github.com/hashicorp/go-uuid":     "GenerateUUID",
	"github.com/pborman/uuid":          "New NewRandom NewUUID",
	"github.com/oklog/ulid":            "Make New MustNew Now",
	"github.com/rs/xid":                "New NewWithTime",
	"github.com/segmentio/ksuid":       "New NewRandom NewRandomWithTime",
	"github.com/lithammer/shortuuid":   "New",
	"github.com/matoous/go-nanoid":     "New Must Generate MustGenerate ID Nanoid",
	"github.com/nats-io/nuid":          "Next",
	"github.com/bwmarrin/snowflake":    "Generate",
	"github.com/sony/sonyflake":        "NextID",
	"go.mongodb.org/mongo-driver/bson": "NewObjectID",
}

// carriers are packages whose functions and methods return what they make of
// their arguments.
var carriers = []string{"fmt", "strconv", "strings", "bytes", "time", "path", "cmp", "hash", "encoding/",
	"crypto/", "hash/", "net/url",
	"github.com/aws/aws-sdk-go-v2/aws", "github.com/stripe/stripe-go", "k8s.io/utils/ptr"}

func (t *tracer) call(e *ast.CallExpr) string {
	if t.info.Types[e.Fun].IsType() && len(e.Args) == 1 {
		return t.trace(e.Args[0])
	}
	f := t.callee(e)
	if v := t.index.variable(e.Fun); f == nil && v != nil && t.deep == 0 {
		if value, ok := t.only(v); ok {
			if lit, ok := value.(*ast.FuncLit); ok {
				return t.result(lit.Body)
			}
		}
	}
	if f == nil || f.Pkg() == nil {
		if b, ok := t.object(e.Fun).(*types.Builtin); ok && b.Name() == "append" {
			return t.any(e.Args)
		}
		return ""
	}
	at := unversioned(f.Pkg().Path())
	if names, ok := fresh[at]; ok && (names == "*" || slices.Contains(strings.Fields(names), f.Name())) {
		if t.receiver(e) == nil || at == "math/rand" || at == "github.com/bwmarrin/snowflake" ||
			at == "github.com/sony/sonyflake" {
			return f.Pkg().Name() + "." + f.Name()
		}
	}
	if on := t.receiver(e); on != nil && !(t.periods && t.namesPeriod(e, f)) {
		if what := t.trace(on); what != "" {
			return what // id.String(), now.Format(...)
		}
	}
	_, generator := fresh[at]
	carries := generator && f.Name() == "Must" || slices.ContainsFunc(carriers, func(c string) bool {
		return at == c || strings.HasSuffix(c, "/") && strings.HasPrefix(at, c)
	})
	if carries {
		return t.any(e.Args)
	}
	if decl := t.decls[f]; decl != nil && t.deep == 0 && f.Signature().Results().Len() > 0 {
		return t.result(decl.Body)
	}
	return ""
}

// namesPeriod reports whether a method of a time.Time returns only which hour, day
// or longer time it is in.
func (t *tracer) namesPeriod(e *ast.CallExpr, f *types.Func) bool {
	if path, name := named(f.Signature().Recv().Type()); path != "time" || name != "Time" {
		return false
	}
	argument := func(i int) constant.Value {
		if i < len(e.Args) {
			return t.info.Types[e.Args[i]].Value
		}
		return nil
	}
	switch f.Name() {
	case "Year", "Month", "Day", "YearDay", "ISOWeek", "Weekday", "Date", "Hour":
		return true
	case "Format":
		return isCoarse(argument(0))
	case "AppendFormat":
		return isCoarse(argument(1))
	case "Truncate", "Round":
		if d := argument(0); d != nil {
			n, exact := constant.Int64Val(constant.ToInt(d))
			return exact && time.Duration(n) >= time.Hour
		}
	}
	return false
}

// isCoarse reports whether a layout shows nothing shorter than an hour.
func isCoarse(layout constant.Value) bool {
	if layout == nil || layout.Kind() != constant.String {
		return false
	}
	hour := time.Date(2001, 2, 3, 4, 0, 0, 0, time.UTC)
	shown := constant.StringVal(layout)
	return hour.Format(shown) == hour.Add(59*time.Minute+58*time.Second+987654321).Format(shown)
}

// any returns what is unstable in one of several expressions.
func (t *tracer) any(es []ast.Expr) string {
	for _, e := range es {
		if what := t.trace(e); what != "" {
			return what
		}
	}
	return ""
}

// result returns what is unstable in every first result of a function.
func (t *tracer) result(body *ast.BlockStmt) (what string) {
	inner := tracer{index: t.index, deep: 1, periods: t.periods}
	always := true
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ReturnStmt:
			if len(n.Results) == 0 {
				always = false
				return false
			}
			if isZero(n.Results[0]) && len(n.Results) > 1 { // return "", err
				return false
			}
			if reason, silenced := t.silenced(n.Pos(), unstableKeyName); silenced && reason { // it is meant to be new
				always = false
				return false
			}
			found := inner.trace(n.Results[0])
			always, what = always && found != "", first(what, found)
		}
		return true
	})
	if !always {
		return ""
	}
	return what
}

// isZero reports whether an expression is what a function returns beside an error.
func isZero(e ast.Expr) bool {
	lit, ok := ast.Unparen(e).(*ast.BasicLit)
	return ok && (lit.Value == `""` || lit.Value == "0")
}

// changing lists fields that differ when the same work comes again.
var changing = map[string]string{
	once + "/broker.Message.Attempt":                                       "the number of the delivery",
	once + "/broker.Message.Time":                                          "the time of the message",
	once + ".Claim.Attempt":                                                "the number of the attempt",
	once + ".Report.Attempt":                                               "the number of the attempt",
	once + ".Record.Attempt":                                               "the number of the attempt",
	"github.com/rabbitmq/amqp091-go.Delivery.DeliveryTag":                  "the tag of the delivery",
	"github.com/streadway/amqp.Delivery.DeliveryTag":                       "the tag of the delivery",
	"github.com/aws/aws-sdk-go-v2/service/sqs/types.Message.ReceiptHandle": "the handle of the delivery",
	"cloud.google.com/go/internal/pubsub.Message.DeliveryAttempt":          "the number of the delivery",
	"github.com/nats-io/nats.go.MsgMetadata.NumDelivered":                  "the number of the delivery",
	"github.com/nats-io/nats.go/jetstream.MsgMetadata.NumDelivered":        "the number of the delivery",
}

// field returns what is unstable in a field of a message or a claim.
func (t *tracer) field(e *ast.SelectorExpr) string {
	sel := t.info.Selections[e]
	if sel == nil || sel.Kind() != types.FieldVal {
		return ""
	}
	path, name := named(sel.Recv())
	return changing[path+"."+name+"."+e.Sel.Name]
}

// literal returns what is unstable in a field of a local variable that is made by
// a composite literal.
func (t *tracer) literal(e *ast.SelectorExpr) string {
	v := t.index.variable(e.X)
	if v == nil || !t.local(v) {
		return ""
	}
	value, ok := t.only(v)
	if !ok {
		return ""
	}
	if ref, ok := value.(*ast.UnaryExpr); ok && ref.Op == token.AND {
		value = ref.X
	}
	lit, ok := value.(*ast.CompositeLit)
	if !ok || t.lasting && t.mayLast(v) {
		return ""
	}
	for _, elt := range lit.Elts {
		if pair, ok := elt.(*ast.KeyValueExpr); ok {
			if name, ok := pair.Key.(*ast.Ident); ok && name.Name == e.Sel.Name {
				t.allowed = append(t.allowed, pair.Value)
				return t.trace(pair.Value)
			}
		}
	}
	return ""
}

// variable returns what is unstable in a local variable.
func (t *tracer) variable(id *ast.Ident) string {
	v := t.index.variable(id)
	if v == nil || !t.local(v) || slices.Contains(t.seen, types.Object(v)) {
		return ""
	}
	t.seen = append(t.seen, v)
	if what := t.loopIndex(v); what != "" {
		return what
	}
	sources := t.vars[v]
	if what := t.filled(v); what != "" {
		return what
	}
	if len(sources) > 1 && isAddition(sources[1:]) {
		return t.sum(v, sources)
	}
	if len(sources) != 1 || sources[0].expr == nil || sources[0].result > 0 || t.lasting && t.mayLast(v) {
		return ""
	}
	t.allowed = append(t.allowed, sources[0].expr)
	return t.trace(sources[0].expr)
}

// isAddition reports whether assignments only add to a variable.
func isAddition(sources []source) bool {
	return !slices.ContainsFunc(sources, func(s source) bool {
		assign, ok := s.at.(*ast.AssignStmt)
		return !ok || assign.Tok != token.ADD_ASSIGN
	})
}

// sum returns what is unstable in a variable to which more is added, before it is
// used.
func (t *tracer) sum(v *types.Var, sources []source) string {
	if sources[0].expr == nil || sources[0].result > 0 {
		return ""
	}
	for _, s := range sources {
		t.allowed = append(t.allowed, s.at)
	}
	if t.lasting && t.mayLast(v) {
		return ""
	}
	for _, s := range sources {
		if s.at.Pos() < t.at.Pos() {
			if what := t.trace(s.expr); what != "" {
				return what
			}
		}
	}
	return ""
}

// local reports whether a variable is one of a function.
func (x *index) local(v *types.Var) bool {
	return !v.IsField() && v.Pkg() == x.pkg && v.Parent() != nil && v.Parent() != x.pkg.Scope()
}

// filled reports whether crypto/rand.Read fills a variable.
func (t *tracer) filled(v *types.Var) string {
	found := ""
	for at := range t.cursor.Preorder((*ast.CallExpr)(nil)) {
		call := at.Node().(*ast.CallExpr)
		f := t.callee(call)
		if f == nil || f.Pkg() == nil || f.Pkg().Path() != "crypto/rand" || f.Name() != "Read" || len(call.Args) != 1 {
			continue
		}
		arg := ast.Unparen(call.Args[0])
		if s, ok := arg.(*ast.SliceExpr); ok {
			arg = s.X
		}
		if t.index.variable(arg) == v {
			found = "rand.Read"
		}
	}
	return found
}

// mayLast reports whether the value of a variable may be known after a crash, or
// in another attempt of this process, because it is used before it becomes part
// of the key, or outside of a loop that repeats the work.
func (t *tracer) mayLast(v *types.Var) bool {
	for at := range t.cursor.Preorder((*ast.Ident)(nil)) {
		id := at.Node().(*ast.Ident)
		if t.info.Uses[id] != v || id.Pos() >= t.at.Pos() {
			continue
		}
		if !slices.ContainsFunc(t.allowed, func(n ast.Node) bool {
			return n.Pos() <= id.Pos() &&
				id.Pos() < n.End()
		}) && !t.logged(at.Node()) {
			return true
		}
	}
	here, ok := t.cursor.FindNode(t.at)
	if !ok {
		return true
	}
	for around := range here.Enclosing((*ast.ForStmt)(nil), (*ast.RangeStmt)(nil)) {
		if loop := around.Node(); v.Pos() < loop.Pos() {
			return true
		}
	}
	return false
}

// logged reports whether an identifier is in a call that only shows it.
func (t *tracer) logged(n ast.Node) bool {
	here, ok := t.cursor.FindNode(n)
	if !ok {
		return false
	}
	for around := range here.Enclosing((*ast.CallExpr)(nil)) {
		f := t.callee(around.Node().(*ast.CallExpr))
		if f == nil || f.Pkg() == nil {
			continue
		}
		if p := f.Pkg().Path(); p == "log" || p == "log/slog" || p == "fmt" && strings.HasPrefix(f.Name(), "Print") {
			return true
		}
	}
	return false
}

var attempts = regexp.MustCompile(`(?i)^(attempt|try|tries|retry|retries)(s|no|num|number|count)?$`)

// loopIndex says that a variable is the index of a list, or counts attempts.
func (t *tracer) loopIndex(v *types.Var) string {
	for _, s := range t.vars[v] {
		if s.ranging != nil && t.index.variable(s.ranging.Key) == v {
			switch of := t.typeOf(s.ranging.X).Underlying().(type) {
			case *types.Slice, *types.Array:
				return "the index of a loop"
			case *types.Pointer:
				if _, ok := of.Elem().Underlying().(*types.Array); ok {
					return "the index of a loop"
				}
			case *types.Basic:
				if t.countsAttempts(v, s.ranging, s.ranging.Body) {
					return "the number of the attempt"
				}
			}
			return ""
		}
	}
	here, ok := t.cursor.FindNode(t.at)
	if t.at == nil || !ok {
		return ""
	}
	for around := range here.Enclosing((*ast.ForStmt)(nil)) {
		loop := around.Node().(*ast.ForStmt)
		init, ok := loop.Init.(*ast.AssignStmt)
		if !ok || len(init.Lhs) != 1 || t.index.variable(init.Lhs[0]) != v {
			continue
		}
		if cond, ok := loop.Cond.(*ast.BinaryExpr); ok {
			if length, ok := ast.Unparen(cond.Y).(*ast.CallExpr); ok {
				if b, ok := t.object(length.Fun).(*types.Builtin); ok && b.Name() == "len" {
					return "the index of a loop"
				}
			}
		}
		if t.countsAttempts(v, loop, loop.Body) {
			return "the number of the attempt"
		}
	}
	return ""
}

// countsAttempts reports whether the loop of a counter repeats one piece of work
// until it succeeds: the counter's name says so, or the loop ends with err == nil.
func (t *tracer) countsAttempts(v *types.Var, loop ast.Node, body *ast.BlockStmt) bool {
	if attempts.MatchString(v.Name()) {
		return true
	}
	for _, s := range body.List {
		check, ok := s.(*ast.IfStmt)
		if !ok {
			continue
		}
		cond, ok := check.Cond.(*ast.BinaryExpr)
		if !ok || cond.Op != token.EQL || types.ExprString(cond.Y) != "nil" || t.typeOf(cond.X) == nil ||
			t.typeOf(cond.X).String() != "error" {
			continue
		}
		for _, s := range check.Body.List {
			switch s := s.(type) {
			case *ast.ReturnStmt:
				return true
			case *ast.BranchStmt:
				if s.Tok == token.BREAK && s.Label == nil {
					return true
				}
			}
		}
	}
	return false
}
