package consuming

import (
	"fmt"
	"strings"

	"github.com/effectively-once/once/store/sqlschema"
)

// statements has the SQL of [Tables].
type statements struct {
	meet, lock, known, register, consumers  sqlschema.Statement
	rewrite, delete, retire, shelfInUse     sqlschema.Statement
	ensure, raise, set, position, positions sqlschema.Statement
	move, mark, unmark, repair              sqlschema.Statement
	shelve, change, remove, forget          sqlschema.Statement

	blocked         map[int]map[bool]sqlschema.Statement // by the number of keys, and whether parked messages block
	blockedTogether sqlschema.Statement                  // in PostgreSQL, instead of blocked
	compile         func(text string) sqlschema.Statement
}

func newStatements(n sqlschema.Names) (st statements) {
	compile := n.Compiler(marks(n.Dialect())...)
	st.compile = compile
	st.known, st.consumers = compile(knownSQL+"{fresh} WHERE c.id = @row{locked}"), compile(knownSQL+"{hint}")
	st.lock = compile(lockSQL)
	st.meet = compile(orNothing(n.Dialect(), "{consumer}", "id, name, source, key_name, seen", "@row, @name, '', '', 0"))
	st.register = compile(registerSQL)
	st.rewrite, st.delete, st.retire, st.shelfInUse = compile(rewriteSQL), compile(deleteSQL), compile(retireSQL), compile(shelfInUseSQL)
	st.ensure = compile(orNothing(n.Dialect(), "{position}",
		"id, consumer_id, consumer, partition_name, epoch, log_name, log_offset, digest",
		"@row, @who, @name, @partition, 0, '', 0, @digest"))
	st.raise, st.set = compile(raiseSQL), compile(setSQL)
	st.position = compile(positionSQL + "{fresh} WHERE p.id = @row{locked}")
	st.positions = compile(positionSQL + "{hint} WHERE p.consumer_id = @who OR p.consumer = @name")
	st.move, st.mark, st.unmark, st.repair = compile(moveSQL), compile(markSQL), compile(unmarkSQL), compile(repairSQL)
	st.shelve = compile(orNothing(n.Dialect(), "{shelf}", shelfColumns, shelfValues))
	st.change, st.remove, st.forget = compile(changeSQL), compile(removeSQL), compile(forgetSQL[n.Dialect()])
	st.blocked = make(map[int]map[bool]sqlschema.Statement)
	for _, keys := range blockedAtOnce {
		st.blocked[keys] = map[bool]sqlschema.Statement{
			true: compile(blockedSQL(keys, "1, 2")), false: compile(blockedSQL(keys, "1"))}
	}
	if n.Dialect() == sqlschema.PostgreSQL {
		st.blockedTogether = compile(blockedTogetherSQL)
	}
	return st
}

// marks are what the dialects spell differently in these statements. {fresh}
// and {locked} read what is committed now, instead of the snapshot of the
// transaction.
func marks(d sqlschema.Dialect) []string {
	fresh, locked, counted, whole := "", "", "", ""
	switch d {
	case sqlschema.SQLite:
		whole = " AND typeof(epoch) = 'integer'"
	case sqlschema.MySQL:
		locked = " LOCK IN SHARE MODE"
	case sqlschema.SQLServer:
		fresh, counted = " WITH (READCOMMITTEDLOCK)", "SET NOCOUNT OFF;\n"
	}
	return []string{"{fresh}", fresh, "{locked}", locked, "{counted}", counted, "{whole epoch}", whole, "{same log}", d.Same("log_name", "@from")}
}

// orNothing inserts a row unless there is one with its ID.
func orNothing(d sqlschema.Dialect, table, columns, values string) string {
	switch d {
	case sqlschema.MySQL: // where INSERT IGNORE would hide other errors
		return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON DUPLICATE KEY UPDATE id = id", table, columns, values)
	case sqlschema.SQLServer: // without XACT_ABORT, a duplicate key does not abort the transaction
		return fmt.Sprintf(`SET NOCOUNT ON; SET XACT_ABORT OFF;
BEGIN TRY
	INSERT INTO %s (%s)
	SELECT %s
	WHERE NOT EXISTS (SELECT 1 FROM %[1]s AS r WITH (READCOMMITTEDLOCK) WHERE r.id = @row);
END TRY
BEGIN CATCH
	IF ERROR_NUMBER() NOT IN (2627, 2601) OR XACT_STATE() = -1
		BEGIN; THROW; END;
END CATCH`, table, columns, values)
	}
	return fmt.Sprintf("{with} INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (id) DO NOTHING", table, columns, values)
}

// blockedAtOnce are the numbers of ordering keys for which there are
// statements.
var blockedAtOnce = []int{1, 8, 64}

// blockedSQL has a column for each key. MySQL reads in share mode, since the
// snapshot of its transaction would not show what others have committed
// meanwhile.
func blockedSQL(keys int, states string) string {
	columns := make([]string, keys)
	for i := range columns {
		columns[i] = fmt.Sprintf("CASE WHEN EXISTS (SELECT 1 FROM {shelf} AS b{fresh} WHERE b.lane = @lane%d "+
			"AND b.state IN (%s){locked}) THEN 1 ELSE 0 END", i, states)
	}
	return "SELECT " + strings.Join(columns, ",\n")
}

// blockedTogetherSQL is for any number of keys. Their lanes are the text of an
// array, because not all drivers have arrays. The lowest state of a lane is the
// first entry of its index, however many messages it has. For a single key,
// PostgreSQL would plan it anew each time, which takes ten times as long as the
// statement of blockedSQL.
const blockedTogetherSQL = `SELECT u.nth FROM unnest(CAST(@keys AS uuid[])) WITH ORDINALITY AS u (lane, nth)
WHERE (SELECT min(b.state) FROM {shelf} AS b WHERE b.lane = u.lane) <= @state`

var knownSQL = `{with} SELECT c.name, c.source, c.key_name, c.seen, ` + sqlschema.Since("c.seen") + ` FROM {consumer} AS c`

const (
	consumerNames = "name, source, key_name, seen, since"

	// The epoch is read with its sign, because ABS of a damaged number would be an
	// error of the whole query.
	positionNames = "id, consumer_id, consumer, partition_name, log_name, log_offset, digest, epoch, shelved"

	// lockSQL locks a row that exists. Locking a missing row would lock the gap
	// in MySQL, and block all inserts into it. Of the columns, it does not write the
	// time, which SQLite would check.
	lockSQL = `UPDATE {consumer} SET source = source WHERE id = @row`

	registerSQL = `{with} UPDATE {consumer} SET source = @source, key_name = @keys, seen = {now} WHERE id = @row`

	rewriteSQL = `UPDATE {consumer} SET source = @source, key_name = @keys, seen = @seen WHERE id = @row`
	deleteSQL  = `DELETE FROM {consumer} WHERE id = @row`

	// Either of the two may be that of another consumer, in a row that is damaged. A
	// row that has no log has no offset either: 0 would be the first message.
	retireSQL = `UPDATE {position} SET epoch = ABS(epoch) + 1, log_name = CASE WHEN log_name = '' THEN log_name ELSE @log END
WHERE consumer_id = @who AND consumer = @name`

	shelfInUseSQL = `SELECT CASE WHEN EXISTS (SELECT 1 FROM {shelf} AS b{fresh} WHERE b.consumer_id IN (@who, @queue) AND b.state IN (1, 2){locked})
	THEN 1 ELSE 0 END`

	// A negative epoch was left by a handler that committed its transaction
	// itself. A damaged one is not raised, because that might hide the damage. That
	// of a row that is damaged elsewhere may be another's, so setSQL does not raise it.
	raiseSQL = `UPDATE {position} SET epoch = ABS(epoch) + 1 WHERE id = @row` + epochStands
	setSQL   = `{counted}UPDATE {position} SET epoch = ABS(epoch) + 1, log_name = @log, log_offset = @offset, digest = @digest
WHERE id = @row AND consumer_id = @who AND consumer = @name AND partition_name = @partition AND (log_name <> '' OR log_offset = 0)` + epochStands

	epochStands = `{whole epoch} AND epoch > -4000000000000000000 AND epoch < 4000000000000000000 AND (epoch <> 0 OR log_name = '')`

	// The time is after all epochs that the row can have had.
	repairSQL = `{counted}{with} UPDATE {position} SET consumer_id = @who, consumer = @name, partition_name = @partition,
	epoch = {now}, log_name = @log, log_offset = @offset, digest = @digest WHERE id = @row`

	positionSQL = `SELECT {digest}(p.id), {digest}(p.consumer_id), p.consumer, p.partition_name, p.log_name, p.log_offset, {digest}(p.digest), p.epoch,
	CASE WHEN EXISTS (SELECT 1 FROM {shelf} AS b{hint} WHERE b.consumer_id = p.consumer_id AND b.state IN (1, 2))
	THEN 1 ELSE 0 END
FROM {position} AS p`

	moveSQL = `{counted}UPDATE {position} SET log_name = @log, log_offset = @offset, digest = @digest
WHERE id = @row AND epoch = @epoch AND log_offset = @at AND {same log}`
	markSQL = `{counted}UPDATE {position} SET epoch = -epoch, log_name = @log, log_offset = @offset, digest = @digest
WHERE id = @row AND epoch = @epoch AND log_offset = @at AND {same log}`
	unmarkSQL = `{counted}UPDATE {position} SET epoch = @epoch WHERE id = @row AND epoch = -@epoch`
)
