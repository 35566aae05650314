package sqlschema

import (
	"strconv"
	"strings"
)

// Statement is SQL as drivers accept it, with the names of its parameters in
// order.
type Statement struct {
	Text  string
	names []string
}

// Params are the values of parameters by name. A missing one is NULL.
type Params map[string]any

// Args returns the values in the order of the statement.
func (st Statement) Args(p Params) []any {
	args := make([]any, len(st.names))
	for i, name := range st.names {
		args[i] = p[name]
	}
	return args
}

// Compiler returns a function that compiles statements, which are written once
// for all dialects. It replaces names in braces, called marks, by the names of
// tables and by what the dialects spell differently. It replaces parameters,
// such as @key, by the placeholders of the dialect. Marks adds pairs of a mark
// and its text, which come before the common ones.
func (n Names) Compiler(marks ...string) func(text string) Statement {
	marks = append(append(append(marks, n.consumerNames()...), n.outboxNames()...), n.commonMarks()...)
	c := &compiler{text: strings.NewReplacer(marks...), dialect: n.dialect}
	return c.compile
}

// commonMarks are what the dialects spell differently in the statements of all
// packages.
func (n Names) commonMarks() []string {
	marks := []string{"{clock}", n.Now(), "{farthest}", farthest}
	switch n.dialect {
	case PostgreSQL: // whose clock advances during a statement, so it is read once
		return append(marks, "{with}", "WITH "+n.clock(), "{now}", "(SELECT now FROM clock)", "{bytes}", "uuid_send",
			"{digest}", "text", "{begun}", n.Begun(), "{hint}", "", "{null}", "CAST(NULL AS bytea)", "{top}", "", "{limit}", " LIMIT @limit")
	case SQLServer:
		return append(marks, "{with}", "", "{now}", n.Now(), "{bytes}", "", "{digest}", "", `"key"`, "[key]",
			"{hint}", " WITH (READCOMMITTED)", "{top}", "TOP (@limit) ", "{limit}", "",
			"{null}", "CAST(NULL AS varbinary(max))") // a CASE of nothing but NULL is an error
	case MySQL:
		marks = append(marks, `"key"`, "`key`")
	}
	return append(marks, "{with}", "", "{now}", n.Now(), "{bytes}", "", "{digest}", "",
		"{hint}", "", "{null}", "NULL", "{top}", "", "{limit}", " LIMIT @limit")
}

// Bytes is the SQL for a column of bytes, which takes two columns: scan the
// second into [Hex] of what the first is scanned into. PostgreSQL may be set to
// write bytes with escapes, which not every driver reads. Then the second has
// their digits.
func (d Dialect) Bytes(column, as string) string {
	if d != PostgreSQL {
		return column + " AS " + as + ", NULL AS " + as + "_hex"
	}
	return "CASE WHEN " + hexSQL + " THEN " + column + " END AS " + as + ", " +
		"CASE WHEN " + hexSQL + " THEN NULL ELSE encode(" + column + ", 'hex') END AS " + as + "_hex"
}

// hexSQL reads the setting once in a statement.
const hexSQL = "(SELECT current_setting('bytea_output') = 'hex')"

// farthest is a time in microseconds that no row has. With one that lies beyond, as
// damaged rows may have, a difference may be an error of the whole query.
const farthest = "4611686018427387904"

// Until is the SQL for the time until a column, in microseconds. It is 0 if the
// column is null, or is no time.
func Until(column string) string {
	return "CASE WHEN " + column + " BETWEEN 0 AND " + farthest + " THEN " + column + " - {now} ELSE 0 END"
}

// Since is the SQL for the time since a column, as [Until] is for that until it.
func Since(column string) string {
	return "CASE WHEN " + column + " BETWEEN 0 AND " + farthest + " THEN {now} - " + column + " ELSE 0 END"
}

// clock is a table with the time of a statement in PostgreSQL, for its WITH.
func (n Names) clock() string { return "clock AS (SELECT " + n.Now() + " AS now)" }

// compiler compiles the statements of one dialect.
type compiler struct {
	text    *strings.Replacer
	dialect Dialect
}

// deepest bounds how deeply the texts of marks contain other marks.
const deepest = 4

// columnType is the type of a column, and of the parameters for it.
type columnType struct{ postgres, sqlserver string }

var (
	bigType   = columnType{"bigint", "bigint"}
	smallType = columnType{"smallint", "smallint"}
	uuidType  = columnType{"uuid", "binary(16)"}
	partType  = columnType{"text", "nvarchar(255)"}
	textType  = columnType{"text", "nvarchar(max)"}
	bytesType = columnType{"bytea", "varbinary(max)"}
)

// parameterTypes are the types of parameters by name, without the numbers at
// the end. Others are bigint. PostgreSQL and SQL Server declare them: a driver
// might send another type, and the driver of SQL Server sends NULL as a text,
// which the server does not convert to bytes implicitly.
var parameterTypes = map[string]columnType{
	"key": uuidType, "owner": uuidType, "caused": uuidType, "uuid": uuidType, "after": uuidType, "until": uuidType,
	"row": uuidType, "who": uuidType, "queue": uuidType, "lane": uuidType, "digest": uuidType,

	"scope": partType, "operation": partType, "id": partType, "type": partType, "name": partType, "source": partType,
	"keys": partType, "partition": partType, "log": partType, "from": partType, "message": partType, "topic": partType,
	"ordering": partType, "produced": partType, "queues": partType,

	"reason": textType, "cause": textType, "origin": textType, "history": textType, "header": textType,
	"seqs": textType, "lanes": textType, "places": textType,

	"fingerprint": bytesType, "body": bytesType,
	"status": smallType, "flags": smallType, "state": smallType, "of": smallType,

	"tracks": {postgres: "smallint[]"}, "states": {postgres: "smallint[]"}, "delays": {postgres: "bigint[]"},
	"ids": {postgres: "text[]"}, "topics": {postgres: "text[]"}, "orderings": {postgres: "text[]"},
	"causes": {postgres: "text[]"}, "times": {postgres: "text[]"}, "headers": {postgres: "text[]"},
	"bodies": {postgres: "bytea[]"},
}

// compile replaces marks by their texts, and parameters by placeholders.
func (c *compiler) compile(text string) (out Statement) {
	for range deepest {
		filled := c.text.Replace(text)
		if filled == text {
			break
		}
		text = filled
	}
	numbered := map[string]string{}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "@")
		b.WriteString(before)
		if !found {
			out.Text = b.String()
			return out
		}
		double := strings.HasPrefix(rest, "@") // of a function of SQL Server
		name := word(strings.TrimPrefix(rest, "@"))
		switch {
		case double:
			b.WriteString("@@" + name)
			text = rest[len("@")+len(name):]
			continue
		case name == "":
			b.WriteString("@")
		case numbered[name] != "":
			b.WriteString(numbered[name])
		default:
			out.names = append(out.names, name)
			placeholder := c.placeholder(name, len(out.names))
			if c.dialect == PostgreSQL || c.dialect == SQLServer {
				numbered[name] = placeholder
			}
			b.WriteString(placeholder)
		}
		text = rest[len(name):]
	}
}

// placeholder returns what stands for a parameter, the nth of its statement.
func (c *compiler) placeholder(name string, n int) string {
	kind, ok := parameterTypes[strings.TrimRight(name, "0123456789")]
	if !ok {
		kind = bigType
	}
	switch c.dialect {
	case PostgreSQL:
		return "$" + strconv.Itoa(n) + "::" + kind.postgres
	case SQLServer:
		return "CAST(@p" + strconv.Itoa(n) + " AS " + kind.sqlserver + ")"
	default:
		return "?"
	}
}

// word returns the letters, digits and underscores at the beginning of a text.
func word(text string) string {
	end := 0
	for ; end < len(text); end++ {
		c := text[end]
		if c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			break
		}
	}
	return text[:end]
}
