package pgstore

import "github.com/jackc/pgx/v5"

// nests reports whether a text may begin a savepoint, or go back to one: where one of its statements is that, or begins
// with no word that is known not to be, as the name of a prepared statement does.
func nests(sql string) bool {
	for sql != "" {
		s := scanner{sql}
		word := s.word()
		if word == "" {
			switch s.skipSpace(); {
			case s.text == "" || s.text[0] == ';':
			case s.text[0] != '(': // of a SELECT
				return true
			}
		} else if !isFlat(word) {
			return true
		}
		s.skipStatement()
		sql = s.text
	}
	return false
}

// isFlat reports whether no statement that begins with this word has to do with savepoints.
func isFlat(word string) bool {
	switch word {
	case "select", "insert", "update", "delete", "with", "merge", "values", "table", "set", "reset", "show", "lock",
		"create", "alter", "drop", "truncate", "copy", "call", "do", "declare", "fetch", "move", "close", "explain",
		"analyze", "notify", "listen", "unlisten", "refresh", "comment", "grant", "revoke", "prepare", "execute",
		"deallocate", "security":
		return true
	}
	return false
}

// isRewritten reports whether a statement is sent in words that nobody has seen yet. Named arguments change none of
// them.
func isRewritten(args []any) bool {
	for _, arg := range args {
		switch arg.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
		case pgx.NamedArgs, pgx.StrictNamedArgs:
			return false
		case pgx.QueryRewriter:
			return true
		default:
			return false
		}
	}
	return false
}
