package pgstore

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// kind says what a statement does to the transaction that it is sent in, as far as its text shows it.
type kind int

const (
	other   kind = iota // or more than one statement: it may do anything
	plain               // reads or writes rows, and no more
	control             // begins or ends a transaction
)

// kindOf looks at the first word of a statement.
func kindOf(sql string) kind {
	sql = afterComments(sql)
	word := sql
	if end := strings.IndexFunc(sql, notLetter); end >= 0 {
		word = sql[:end]
	}
	switch rest := sql[len(word):]; strings.ToLower(word) {
	case "select", "insert", "update", "delete", "with", "merge", "values":
		if i := strings.IndexByte(rest, ';'); i < 0 || strings.TrimSpace(rest[i+1:]) == "" {
			return plain
		}
	case "begin", "start", "commit", "end", "abort":
		return control
	case "rollback":
		if !contains(rest, "to") { // a savepoint
			return control
		}
	case "prepare":
		if contains(rest, "transaction") {
			return control
		}
	}
	return other
}

func notLetter(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }

// contains looks for a word in the first statement of a text.
func contains(sql, word string) bool {
	sql, _, _ = strings.Cut(sql, ";")
	for _, field := range strings.Fields(sql) {
		if strings.EqualFold(field, word) {
			return true
		}
	}
	return false
}

// afterComments skips what tools put in front of a statement. A comment in a comment is not worth the trouble: the rest
// of it is no word that counts.
func afterComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n")
		end := ""
		switch {
		case strings.HasPrefix(sql, "--"):
			end = "\n"
		case strings.HasPrefix(sql, "/*"):
			end = "*/"
		default:
			return sql
		}
		_, sql, _ = strings.Cut(sql, end)
	}
}

// travels reports whether a statement means the same in a batch as by itself.
func travels(sql string, args []any) bool {
	if kindOf(sql) != plain {
		return false
	}
	if len(args) == 0 {
		return true
	}
	switch args[0].(type) {
	case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		return false
	}
	return true
}
