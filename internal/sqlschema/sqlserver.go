package sqlschema

import "strings"

// lockMillis is how long a claim waits for a row that another transaction has locked: longer than one statement that
// commits by itself takes, and no longer, because the wait holds a connection.
const lockMillis = "100"

// transactSQL is what names in braces stand for in SQL Server, where = passes over spaces at the end of a text.
func (n Names) transactSQL() []string {
	return []string{"{with}", "", "{now}", n.Now(), "{bytes}", "", `"key"`, "[key]",
		"{target}", "r", "{from}", "\nFROM {table} AS r", "{hint}", " WITH (READCOMMITTED)", "{top}", "TOP (@limit) ", "{limit}", "",
		"{last}", " OFFSET " + passedOver + " ROWS FETCH NEXT 1 ROWS ONLY",
		"{null}", "CAST(NULL AS varbinary(max))", // a CASE of nothing but NULL is an error
		"{asked}", "r.operation = @operation AND DATALENGTH(r.operation) = DATALENGTH(@operation)", "{picked}", pickedSQL,
		"{past locks}", " WITH (READPAST, READCOMMITTEDLOCK)"}
}

// inTransactSQL replaces the statements that are different in SQL Server.
func (n Names) inTransactSQL(st *Statements) {
	st.Insert = st.compile(claimSQLServer)
	st.GetLocked = st.compile(strings.Replace(getSQL, "{hint}", " WITH (READCOMMITTEDLOCK)", 1))
	st.Extend, st.Settle = st.compile(countedSQL+extendSQL), st.compile(countedSQL+settleSQL)
	st.SettleOwn = st.compile(countedSQL + settleSQL + ownSQLServer)
	st.Forget, st.Expire = st.compile(countedSQL+forgetSQLServer), st.compile(countedSQL+expireSQLServer)
	st.Reopen = st.compile(countedSQL + reopenSQL)
}

// typesSQLServer are those of the columns: a driver sends NULL as a text, which does not become bytes by itself.
var typesSQLServer = map[string]string{"key": "binary(16)", "owner": "binary(16)", "caused": "binary(16)", "uuid": "binary(16)", "after": "binary(16)", "until": "binary(16)",
	"scope": "nvarchar(255)", "operation": "nvarchar(255)", "id": "nvarchar(255)", "type": "nvarchar(255)", "reason": "nvarchar(max)",
	"fingerprint": "varbinary(max)", "body": "varbinary(max)", "status": "smallint", "flags": "smallint",
	"row": "binary(16)", "who": "binary(16)", "lane": "binary(16)", "digest": "binary(16)", "state": "smallint",
	"name": "nvarchar(255)", "source": "nvarchar(255)", "keys": "nvarchar(255)", "partition": "nvarchar(255)",
	"log": "nvarchar(255)", "from": "nvarchar(255)", "message": "nvarchar(255)", "topic": "nvarchar(255)",
	"ordering": "nvarchar(255)", "produced": "nvarchar(255)", "cause": "nvarchar(max)", "origin": "nvarchar(max)", "history": "nvarchar(max)",
	"header": "nvarchar(max)", "of": "smallint"}

const (
	// countedSQL undoes the one setting that would hide how many rows a statement has changed. What is set in a statement
	// with parameters ends with it, because it runs in sp_executesql.
	countedSQL = "SET NOCOUNT OFF;\n"

	// ownSQLServer is false where the work has ended its transaction, or begun one within it: then COMMIT would end only that.
	ownSQLServer = ` AND @@TRANCOUNT = 1`

	// claimSQLServer returns the row that is the caller's now, or what stands in its way. No row at all: another claim was
	// committed in between, and the index has refused this one.
	//
	// A row that another transaction has locked is waited for, but not long. Error 1222 then says that it still is, and is
	// answered with an attempt 0. Without XACT_ABORT neither error touches the transaction that this one is in. The hints are
	// there for whatever level that transaction has: under SNAPSHOT it would look at old rows, and under SERIALIZABLE the
	// search for a key that is absent would lock the gap between its neighbours.
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
		SELECT @key, @scope, @operation, @id, 1, 1, 0, NULL, 0, 0, NULL, NULL, N'', 0, 0, N'', 0, 0, NULL;
	ELSE IF ERROR_NUMBER() NOT IN (2627, 2601) OR XACT_STATE() = -1
		BEGIN; THROW; END;
END CATCH`

	// pickedSQL passes over rows that others have locked, whatever READ_COMMITTED_SNAPSHOT says.
	pickedSQL = `SELECT TOP (@limit) d.outcome, d.lease_until, d.due, d.key_until FROM {table} AS d WITH (UPDLOCK, READPAST, READCOMMITTEDLOCK)
WHERE d.due <= {now} ORDER BY d.due`

	forgetSQLServer = `WITH picked AS ({picked}) DELETE FROM picked WHERE key_until <= {now}`
	expireSQLServer = `WITH picked AS ({picked}) UPDATE picked SET outcome = NULL, lease_until = 0, due = key_until`
)
