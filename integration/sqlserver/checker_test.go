package sqlserver_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/sqlc-dev/teesql/ast"
	"github.com/sqlc-dev/teesql/parser"
)

// check parses SQL and applies the rules below. The parser alone is too
// lenient: it takes what it does not understand for another statement, or for a
// name. So the caller says which kinds of statements it expects, and names and
// functions must be known.
func check(sql string, kinds ...string) error {
	script, err := parser.Parse(context.Background(), strings.NewReader(sql))
	if err != nil {
		return err
	}
	var found []string
	for _, batch := range script.Batches {
		for _, statement := range batch.Statements {
			found = append(found, kind(statement))
		}
	}
	if !slices.Equal(found, kinds) {
		return fmt.Errorf("it is read as %q, want %q", found, kinds)
	}
	broken := []error{balanced(sql), typed(script)}
	walk(reflect.ValueOf(script), func(node any) {
		for _, rule := range []func(any) error{knownName, knownType, knownFunction, knownVariable, caseHasType, hintsAgree, insertIsEven} {
			if err := rule(node); err != nil {
				broken = append(broken, err)
			}
		}
	})
	return errors.Join(broken...)
}

var (
	opening = regexp.MustCompile(`\b(BEGIN|CASE)\b`)
	closing = regexp.MustCompile(`\bEND\b`)
)

// balanced counts BEGIN and END, since the parser adds a missing END.
func balanced(sql string) error {
	sql = strings.ReplaceAll(sql, "BEGIN TRANSACTION", "")
	if open, closed := len(opening.FindAllString(sql, -1)), len(closing.FindAllString(sql, -1)); open != closed {
		return fmt.Errorf("%d blocks are opened, and %d closed", open, closed)
	}
	return nil
}

// typed requires a CAST around each parameter. The driver declares NULL as a
// text, and texts by their length.
func typed(script *ast.Script) error {
	cast, used := map[any]bool{}, []*ast.VariableReference{}
	walk(reflect.ValueOf(script), func(node any) {
		switch n := node.(type) {
		case *ast.CastCall:
			cast[n.Parameter] = true
		case *ast.VariableReference:
			used = append(used, n)
		}
	})
	for _, v := range used {
		if strings.HasPrefix(v.Name, "@p") && !cast[v] {
			return fmt.Errorf("%s has no CAST around it", v.Name)
		}
	}
	return nil
}

func kind(node any) string {
	return strings.TrimSuffix(reflect.TypeOf(node).Elem().Name(), "Statement")
}

// walk visits every pointer in a tree.
func walk(v reflect.Value, visit func(node any)) {
	switch v.Kind() {
	case reflect.Interface:
		walk(v.Elem(), visit)
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		visit(v.Interface())
		walk(v.Elem(), visit)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				walk(v.Field(i), visit)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), visit)
		}
	}
}

// columns are the columns of all tables, and other names that look like one.
var columns = strings.Fields(`key scope operation id status attempt owner lease_until fingerprint outcome content_type flags sum
	outcome_until key_until due reason created updated version compatible name applied microsecond
	source key_name seen consumer_id consumer partition_name epoch log_name log_offset digest
	seq state attempts ended lane key_id message_id topic ordering_key produced origin history header body
	changed cause relay place bytes running nth`)

// numberedAlias is the alias of a lane.
var numberedAlias = regexp.MustCompile(`^[sf][0-9]+$`)

func knownName(node any) error {
	column, ok := node.(*ast.ColumnReferenceExpression)
	if !ok || column.MultiPartIdentifier == nil {
		return nil
	}
	parts := column.MultiPartIdentifier.Identifiers
	last := parts[len(parts)-1]
	switch {
	case !slices.Contains(columns, last.Value):
		return fmt.Errorf("%q is no column of ours", last.Value)
	case last.Value == "key" && last.QuoteType != "SquareBracket":
		return errors.New("key is reserved: it stands without brackets")
	case len(parts) == 2 && !numberedAlias.MatchString(parts[0].Value) && !slices.Contains([]string{"r", "d", "c", "p", "b", "s",
		"o", "l", "f", "h", "a", "q", "v", "deleted"}, parts[0].Value):
		return fmt.Errorf("%q is no table of ours", parts[0].Value)
	}
	return nil
}

func knownType(node any) error {
	if own, ok := node.(*ast.UserDataTypeReference); ok {
		return fmt.Errorf("%q is no type that comes with SQL Server", own.Name.BaseIdentifier.Value)
	}
	return nil
}

var functions = strings.Fields(`DATEDIFF_BIG SYSUTCDATETIME DATALENGTH ERROR_NUMBER XACT_STATE OBJECT_ID SCHEMA_ID SIGN MAX COUNT ABS
	MIN SUM ROW_NUMBER CHARINDEX`)

func knownFunction(node any) error {
	if call, ok := node.(*ast.FunctionCall); ok && !slices.Contains(functions, strings.ToUpper(call.FunctionName.Value)) {
		return fmt.Errorf("the function %q is not one that SQL Server 2016 is known to have", call.FunctionName.Value)
	}
	return nil
}

func knownVariable(node any) error {
	v, ok := node.(*ast.VariableReference)
	if !ok || v.Name == "@got" || strings.HasPrefix(v.Name, "@p") {
		return nil
	}
	return fmt.Errorf("%s is neither a parameter nor declared", v.Name)
}

// caseHasType reports a CASE of nothing but NULL, which is error 8133 of the
// server.
func caseHasType(node any) error {
	c, ok := node.(*ast.SearchedCaseExpression)
	if !ok {
		return nil
	}
	results := []any{c.ElseExpression}
	for _, when := range c.WhenClauses {
		results = append(results, when.ThenExpression)
	}
	for _, result := range results {
		if _, null := result.(*ast.NullLiteral); result != nil && !null {
			return nil
		}
	}
	return errors.New("a CASE that yields nothing but NULL has no type")
}

// hintsAgree requires the hints that READPAST needs with
// READ_COMMITTED_SNAPSHOT on, and refuses those with which claims of different
// keys would wait for each other.
func hintsAgree(node any) error {
	table, ok := node.(*ast.NamedTableReference)
	if !ok {
		return nil
	}
	var hints []string
	for _, hint := range table.TableHints {
		if simple, ok := hint.(*ast.TableHint); ok {
			hints = append(hints, strings.ToUpper(simple.HintKind))
		}
	}
	switch {
	case slices.Contains(hints, "READPAST") && !slices.Contains(hints, "READCOMMITTEDLOCK"):
		return errors.New("READPAST without READCOMMITTEDLOCK is an error where READ_COMMITTED_SNAPSHOT is on")
	case slices.Contains(hints, "HOLDLOCK"), slices.Contains(hints, "SERIALIZABLE"):
		return errors.New("a range lock keeps other keys away")
	}
	return nil
}

// insertIsEven compares the columns of an INSERT with the values for them.
func insertIsEven(node any) error {
	insert, ok := node.(*ast.InsertSpecification)
	if !ok {
		return nil
	}
	values := -1
	switch source := insert.InsertSource.(type) {
	case *ast.SelectInsertSource:
		if query, ok := source.Select.(*ast.QuerySpecification); ok {
			values = len(query.SelectElements)
		}
	case *ast.ValuesInsertSource:
		values = len(source.RowValues[0].ColumnValues)
	}
	if values != len(insert.Columns) {
		return fmt.Errorf("%d values for %d columns", values, len(insert.Columns))
	}
	return nil
}
