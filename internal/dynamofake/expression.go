package dynamofake

import (
	"fmt"
	"slices"
	"strings"
)

// expression is a condition, a key condition or an update, with the names and
// values that stand for its placeholders.
type expression struct {
	names  map[string]string
	values map[string]value

	words  []string
	at     int
	item   item
	failed error
	used   map[string]bool
}

func newExpression(text string, names map[string]string, values map[string]value) *expression {
	e := &expression{names: names, values: values, used: make(map[string]bool)}
	for rest := text; rest != ""; {
		switch c := rest[0]; {
		case c == ' ' || c == '\n' || c == '\t':
			rest = rest[1:]
		case strings.HasPrefix(rest, "<>") || strings.HasPrefix(rest, "<=") || strings.HasPrefix(rest, ">="):
			e.words, rest = append(e.words, rest[:2]), rest[2:]
		case strings.IndexByte("()=<>,+-", c) >= 0:
			e.words, rest = append(e.words, rest[:1]), rest[1:]
		default:
			n := strings.IndexAny(rest, " \n\t()=<>,+-")
			if n < 0 {
				n = len(rest)
			}
			e.words, rest = append(e.words, rest[:n]), rest[n:]
		}
	}
	return e
}

func (e *expression) fail(format string, args ...any) {
	if e.failed == nil {
		e.failed = fmt.Errorf(format, args...)
	}
}

func (e *expression) next() string {
	if e.at == len(e.words) {
		e.fail("Invalid expression: it ends early")
		return ""
	}
	e.at++
	return e.words[e.at-1]
}

// accept reads a word if it is the next one. Keywords have no case.
func (e *expression) accept(word string) bool {
	if e.at < len(e.words) && strings.EqualFold(e.words[e.at], word) {
		e.at++
		return true
	}
	return false
}

func (e *expression) expect(word string) {
	if !e.accept(word) {
		e.fail("Invalid expression: no %s after %v", word, e.words[:e.at])
	}
}

// holds reports whether the expression is true of an item. Without an item, it
// is that of an item without attributes.
func (e *expression) holds(it item) (bool, error) {
	e.at, e.item = 0, it
	is := e.or()
	if e.at != len(e.words) {
		e.fail("Invalid expression: unexpected %q", e.words[e.at])
	}
	return is, e.failed
}

func (e *expression) or() bool {
	is := e.and()
	for e.accept("OR") {
		other := e.and() // which also reads it
		is = is || other
	}
	return is
}

func (e *expression) and() bool {
	is := e.not()
	for e.accept("AND") {
		other := e.not()
		is = is && other
	}
	return is
}

func (e *expression) not() bool {
	if e.accept("NOT") {
		return !e.not()
	}
	if e.accept("(") {
		is := e.or()
		e.expect(")")
		return is
	}
	return e.comparison()
}

func (e *expression) comparison() bool {
	for function, is := range map[string]func() bool{
		"attribute_exists":     func() bool { _, has := e.item[e.path()]; return has },
		"attribute_not_exists": func() bool { _, has := e.item[e.path()]; return !has },
		"begins_with": func() bool {
			v := e.operand()
			e.expect(",")
			return strings.HasPrefix(v.text(), e.operand().text())
		},
	} {
		if e.accept(function) {
			e.expect("(")
			holds := is()
			e.expect(")")
			return holds
		}
	}
	left := e.operand()
	operator := e.next()
	if strings.EqualFold(operator, "BETWEEN") {
		low := e.operand()
		e.expect("AND")
		high := e.operand()
		a, ok := compare(left, low)
		b, also := compare(left, high)
		return ok && also && a >= 0 && b <= 0
	}
	right := e.operand()
	if left == nil || right == nil { // an attribute that is absent
		return operator == "<>" && (left != nil || right != nil)
	}
	order, ok := compare(left, right)
	switch operator {
	case "=":
		return equal(left, right)
	case "<>":
		return !equal(left, right)
	case "<":
		return ok && order < 0
	case "<=":
		return ok && order <= 0
	case ">":
		return ok && order > 0
	case ">=":
		return ok && order >= 0
	}
	e.fail("Invalid expression: the operator %q is not known here", operator)
	return false
}

// path reads the name of an attribute.
func (e *expression) path() string {
	word := e.next()
	if !strings.HasPrefix(word, "#") {
		return word
	}
	name, ok := e.names[word]
	if !ok {
		e.fail("Invalid expression: An expression attribute name used in the document path is not defined; attribute name: %s", word)
	}
	e.used[word] = true
	return name
}

func (e *expression) operand() value {
	if e.at < len(e.words) && strings.HasPrefix(e.words[e.at], ":") {
		word := e.next()
		v, ok := e.values[word]
		if !ok {
			e.fail("Invalid expression: An expression attribute value used in expression is not defined; attribute value: %s", word)
		}
		e.used[word] = true
		return v
	}
	if e.accept("if_not_exists") {
		e.expect("(")
		is, has := e.item[e.path()]
		e.expect(",")
		or := e.operand()
		e.expect(")")
		if has {
			return is
		}
		return or
	}
	if e.accept("list_append") {
		e.expect("(")
		first := e.operand()
		e.expect(",")
		second := e.operand()
		e.expect(")")
		a, isList := first["L"].([]any)
		b, isListToo := second["L"].([]any)
		if !isList || !isListToo {
			e.fail("An operand in the update expression has an incorrect data type")
		}
		return value{"L": slices.Concat(a, b)}
	}
	return e.item[e.path()]
}

// update applies SET and REMOVE clauses to an item, in place. All operands have
// the values before it.
func (e *expression) update(it item) error {
	e.at = 0
	e.item = make(item)
	for name, v := range it {
		e.item[name] = v
	}
	for e.at < len(e.words) && e.failed == nil {
		switch {
		case e.accept("SET"):
			for first := true; first || e.accept(","); first = false {
				name := e.path()
				e.expect("=")
				it[name] = e.sum()
			}
		case e.accept("REMOVE"):
			for first := true; first || e.accept(","); first = false {
				delete(it, e.path())
			}
		default:
			e.fail("Invalid UpdateExpression: unexpected %q", e.next())
		}
	}
	return e.failed
}

// sum reads an operand, or the sum or difference of two.
func (e *expression) sum() value {
	left := e.operand()
	minus := e.accept("-")
	if !minus && !e.accept("+") {
		if left == nil {
			e.fail("The provided expression refers to an attribute that does not exist in the item")
		}
		return left
	}
	right := e.operand()
	if left.kind() != "N" || right.kind() != "N" {
		e.fail("An operand in the update expression has an incorrect data type")
		return nil
	}
	r := right.rat()
	if minus {
		r = r.Neg(r)
	}
	r.Add(r, left.rat())
	return value{"N": strings.TrimSuffix(r.RatString(), "/1")}
}

// unused returns an error if a placeholder is not in the expression.
func (e *expression) unused() error {
	for name := range e.names {
		if !e.used[name] {
			return fmt.Errorf("value provided in ExpressionAttributeNames unused in expressions: keys: {%s}", name)
		}
	}
	for name := range e.values {
		if !e.used[name] {
			return fmt.Errorf("value provided in ExpressionAttributeValues unused in expressions: keys: {%s}", name)
		}
	}
	return nil
}
