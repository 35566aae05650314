package sqlschema

import "context"

// A setting is one of a connection, or of its database, with which a store would not keep what it promises.
type setting struct {
	bad   string // a query for a number other than 0 if it is so
	means string
}

// settings are refused, because nothing else shows that they are wrong before work is lost or done twice. What the
// database refuses by itself, as a transaction that is read-only, is not among them; and not what may lose commits in a
// crash of the machine, which is once doctor's to say.
var settings = map[Dialect][]setting{
	PostgreSQL: {
		{"SELECT CASE WHEN current_setting('server_encoding') = 'UTF8' THEN 0 ELSE 1 END",
			"the encoding of the database is not UTF8, so keys and messages with other characters cannot be kept: use a database in UTF8"},
		{"SELECT CASE WHEN current_setting('client_encoding') = 'UTF8' THEN 0 ELSE 1 END",
			"client_encoding is not UTF8, so texts would not come back as they were: take it out of the connection string, or reset it for the role"},
	},
	MySQL: {
		{"SELECT 1 - @@autocommit", autocommitOff},
		{"SELECT CASE WHEN @@completion_type = 'NO_CHAIN' THEN 0 ELSE 1 END",
			"completion_type is not NO_CHAIN, so COMMIT would begin another transaction, in which later statements are never " +
				"committed, or end the connection: take it out of the DSN, or of the settings of the server"},
		{"SELECT CASE WHEN ABS(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), CONVERT_TZ(SYSDATE(), @@session.time_zone, '+00:00'))) > 60 THEN 1 ELSE 0 END",
			"the session has a clock that stands still (SET timestamp), so that no lease would ever lapse: take it out of the DSN"},
	},
	SQLite: {
		{"SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'off'",
			"journal_mode is OFF, so nothing can be rolled back: use WAL, or DELETE"},
		{"SELECT count(*) FROM pragma_journal_mode, pragma_database_list WHERE journal_mode = 'memory' AND name = 'main' AND file <> ''",
			"journal_mode is MEMORY, so a process that ends within a transaction damages the file: use WAL, or DELETE"},
		{"SELECT count(*) FROM pragma_read_uncommitted WHERE read_uncommitted <> 0",
			"read_uncommitted is on, so answers would be seen that are rolled back later: switch it off"},
	},
	SQLServer: {
		{"SELECT SIGN(@@OPTIONS & 2)", autocommitOff},
	},
}

const autocommitOff = "autocommit is off on this *sql.DB (in SQL Server, IMPLICIT_TRANSACTIONS is on), so nothing " +
	"would be remembered: take it out of the DSN, or of the settings of the session"

// CheckSession refuses a connection on which the store cannot keep what it promises, with a [Refusal] that says what to
// change. It only reads, and does not fail a transaction that it is in.
func (n Names) CheckSession(ctx context.Context, x Executor) error {
	for _, s := range settings[n.dialect] {
		bad, err := x.Number(ctx, s.bad)
		if err != nil {
			return err
		}
		if bad != 0 {
			return Refusal(s.means)
		}
	}
	return nil
}
