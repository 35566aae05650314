package records

import (
	"fmt"
	"strings"
)

// marksSQLServer are what names in braces stand for in SQL Server, where =
// ignores spaces at the end of a text.
var marksSQLServer = []string{"{target}", "r", "{from}", "\nFROM {table} AS r",
	"{last}", fmt.Sprintf(" OFFSET %s ROWS FETCH NEXT %d ROWS ONLY", passedOver, endRows),
	"{asked}", "r.operation = @operation AND DATALENGTH(r.operation) = DATALENGTH(@operation)", "{picked}", pickedSQL,
	"{past locks}", " WITH (READPAST, READCOMMITTEDLOCK)"}

// lockMillis bounds the wait of a claim for a row that another transaction has
// locked. It is longer than a single statement takes. A longer wait would hold
// a connection for nothing.
const lockMillis = "100"

// inTransactSQL replaces the statements that differ in SQL Server.
func (st *Statements) inTransactSQL() {
	st.Insert = st.compile(claimSQLServer)
	st.GetLocked = st.compile(strings.Replace(getSQL, "{hint}", " WITH (READCOMMITTEDLOCK)", 1))
	st.Extend, st.Settle = st.compile(countedSQL+extendSQL), st.compile(countedSQL+settleSQL)
	st.SettleOwn = st.compile(countedSQL + settleSQL + ownSQLServer)
	st.Forget, st.Expire = st.compile(countedSQL+forgetSQLServer), st.compile(countedSQL+expireSQLServer)
	st.Reopen = st.compile(countedSQL + reopenSQL)
}

const (
	// countedSQL resets the setting that would hide the number of changed rows.
	// A setting in a statement with parameters ends with the statement, which
	// runs in sp_executesql.
	countedSQL = "SET NOCOUNT OFF;\n"

	// ownSQLServer is false if the work has ended its transaction, or begun
	// another one inside it, which is all that COMMIT would end.
	ownSQLServer = ` AND @@TRANCOUNT = 1`

	// claimSQLServer returns the row that has the key. It returns no row if
	// another claim was committed in between, so that the index has refused
	// this one.
	//
	// If another transaction has locked the row, the claim waits for a short
	// time. Error 1222 means that the row is still locked. Then the claim
	// returns a row with attempt 0. Without XACT_ABORT, neither error aborts
	// the transaction. The hints make the claim independent of the isolation
	// level: under SNAPSHOT it would read old rows, and under SERIALIZABLE the
	// search for an absent key would lock the gap between its neighbours.
	claimSQLServer = `SET NOCOUNT ON; SET XACT_ABORT OFF; SET LOCK_TIMEOUT ` + lockMillis + `;
BEGIN TRY
	INSERT INTO {table} ("key", scope, operation, id, status, attempt, owner, lease_until, fingerprint, cause, created, updated)
	SELECT @key, @scope, @operation, @id, 1, 1, @owner, {now} + @lease, @fingerprint, @caused, {now}, {now}
	WHERE NOT EXISTS (SELECT 1 FROM {table} AS r WITH (READCOMMITTEDLOCK) WHERE r."key" = @key);
	IF @@ROWCOUNT = 0 ` + takeSQL + `;
	SELECT {columns} FROM {table} AS r WITH (READCOMMITTEDLOCK) WHERE r."key" = @key AND NOT {free};
END TRY
BEGIN CATCH
	IF ERROR_NUMBER() = 1222 AND XACT_STATE() <> -1
		SELECT @key, @scope, @operation, @id, 1, 1, 0, NULL, 0, 0, NULL, NULL, NULL, NULL, N'', 0, 0, N'', 0, 0, NULL, 0;
	ELSE IF ERROR_NUMBER() NOT IN (2627, 2601) OR XACT_STATE() = -1
		BEGIN; THROW; END;
END CATCH`

	// pickedSQL skips rows that others have locked, whether
	// READ_COMMITTED_SNAPSHOT is on or off.
	pickedSQL = `SELECT TOP (@limit) d.outcome, d.lease_until, d.due, d.key_until, d.updated FROM {table} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK)
WHERE d.due <= {now} ORDER BY d.due`

	forgetSQLServer = `WITH picked AS ({picked}) DELETE FROM picked WHERE key_until <= {now} AND key_until >= updated - 1000000`
	expireSQLServer = `WITH picked AS ({picked}) UPDATE picked SET outcome = NULL, lease_until = 0, due = key_until`
)
