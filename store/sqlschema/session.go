package sqlschema

import "context"

// setting is a setting of a connection, or of its database, with which a store
// would break its promises.
type setting struct {
	bad   string // a query that returns a number other than 0 if it is set
	means string // what it would cause, and what to do
}

// settings are refused, because nothing else would show that they are wrong
// before work is lost or done twice. Settings that the database itself refuses,
// such as a read-only transaction, are not among them. Neither are settings
// that may lose commits when the machine crashes, which the command once doctor
// reports.
var settings = map[Dialect][]setting{
	PostgreSQL: {
		{"SELECT CASE WHEN current_setting('server_encoding') = 'UTF8' THEN 0 ELSE 1 END",
			"the encoding of the database is not UTF8, so it cannot store all keys and messages: use a database in UTF8"},
		{"SELECT CASE WHEN current_setting('client_encoding') = 'UTF8' THEN 0 ELSE 1 END",
			"client_encoding is not UTF8, so texts would be changed: remove it from the connection string, or reset it for the role"},
	},
	MySQL: {
		{"SELECT 1 - @@autocommit", autocommitOff},
		{"SELECT CASE WHEN @@sql_select_limit < 1000000 THEN 1 ELSE 0 END",
			"sql_select_limit is set, so lists would end early and say nothing: remove it from the DSN, or from the settings of the server"},
		{"SELECT CASE WHEN @@character_set_client = @@character_set_connection THEN 0 ELSE 1 END",
			"character_set_client and character_set_connection differ, so keys would be changed: use charset in the DSN, which sets both"},
		{"SELECT CASE WHEN @@completion_type = 'NO_CHAIN' THEN 0 ELSE 1 END",
			"completion_type is not NO_CHAIN, so COMMIT would begin another transaction, in which later statements are never " +
				"committed, or end the connection: remove it from the DSN, or from the settings of the server"},
		// MariaDB executes the first comment and MySQL the second.
		{"SELECT CASE WHEN /*M!100000 @@tx_isolation */ /*!50720 @@transaction_isolation */ = 'READ-UNCOMMITTED' THEN 1 ELSE 0 END",
			"the isolation level is READ UNCOMMITTED, so answers would be seen that are rolled back later: use READ COMMITTED or REPEATABLE READ"},
		{"SELECT CASE WHEN ABS(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), CONVERT_TZ(SYSDATE(), @@session.time_zone, '+00:00'))) > 60 THEN 1 ELSE 0 END",
			"the session has a fixed clock (SET timestamp), so no lease would ever lapse: remove it from the DSN"},
	},
	SQLite: {
		{"SELECT count(*) FROM pragma_journal_mode WHERE journal_mode = 'off'",
			"journal_mode is OFF, so nothing can be rolled back: use WAL, or DELETE"},
		{"SELECT count(*) FROM pragma_journal_mode, pragma_database_list WHERE journal_mode = 'memory' AND name = 'main' AND file <> ''",
			"journal_mode is MEMORY, so a process that ends within a transaction damages the file: use WAL, or DELETE"},
		{"SELECT count(*) FROM pragma_read_uncommitted WHERE read_uncommitted <> 0",
			"read_uncommitted is on, so reads would return answers that are rolled back later: switch it off"},
	},
	SQLServer: {
		{"SELECT SIGN(@@OPTIONS & 2)", autocommitOff},
	},
}

const autocommitOff = "autocommit is off on this *sql.DB (in SQL Server, IMPLICIT_TRANSACTIONS is on), so nothing " +
	"would be committed: remove it from the DSN, or from the settings of the session"

// CheckSession returns a [Refusal] that says what to change if the store would
// break its promises on this connection. It only reads, and so does not abort a
// transaction.
func (n Names) CheckSession(ctx context.Context, q Querier) error {
	for _, s := range settings[n.dialect] {
		bad, err := number(ctx, q, s.bad)
		if err != nil {
			return err
		}
		if bad != 0 {
			return Refusal(s.means)
		}
	}
	return nil
}
