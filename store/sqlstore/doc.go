// Package sqlstore stores keys in a database through database/sql: SQLite,
// PostgreSQL, MySQL or MariaDB, SQL Server. The record of a key commits
// together with the rows of its work. The package imports no driver. It works
// with any driver that follows database/sql.
//
// # Promise
//
// A [Store] keeps every rule of [once.TxStore], [once.Lister],
// [store.Registry], [store.Positions], [store.TxShelf], [store.Outbox],
// [store.OutboxArchive], [store.Bell], [store.Presence], [store.Archivable] and
// [store.Reopener].
// The methods that it shares with other SQL stores are documented at the types
// that it embeds.
//
// The database must be one writable primary that loses no commit. Never give a
// Store a replica. Time is the database's clock. The time zone of a session
// changes nothing.
//
// The tables come from [Store.Migrate], or from the SQL that [Schema] returns.
// After that, the role of the connection needs only SELECT, INSERT, UPDATE and
// DELETE on them. Consumers and the outbox have their own tables. Until those
// exist, only the methods that need them fail, with [once.ErrInvalid]. The
// tables are those of store/pgstore, so programs with either store can share
// them.
//
// # Claims and open transactions
//
// What a claim does when an open transaction has claimed or settled its key
// depends on the database.
//
// PostgreSQL: the claim sees the lock of the transaction and returns Running
// with LeaseLeft 0 at once. Extend and Settle wait until ctx ends. So does a
// claim through a store that names the same tables in another way: one with
// Schema set and one without.
//
// MySQL and MariaDB: the claim waits for the transaction. Claim and Transact
// wait for ClaimRequest.Wait, or for 250 ms if that is longer. Then they return
// Running with LeaseLeft 0 and close their connection. The server notices that
// when the other transaction ends. If it turns out that no transaction has the
// row, the database was slow, and the claim is repeated. ClaimTx waits for
// innodb_lock_wait_timeout (50 seconds by default) and then returns
// [once.ErrConflict]. If ctx ends before that, the connection is lost.
//
// SQLite: there is one writer at a time, so every claim waits for every
// transaction that has written. The writers of one Store take turns in their
// order, each waiting for up to ten seconds. The wait for other connections and
// processes is bounded by busy_timeout. After that, the result is
// [once.ErrConflict]. [once.DoTx] then repeats its transaction until its
// context ends, or for about a minute if that has no deadline. [once.Do] tries
// four times.
//
// SQL Server: the claim waits 100 ms for the transaction and then returns
// Running with LeaseLeft 0. Extend and Settle wait until ctx ends. So do Get
// and List if READ_COMMITTED_SNAPSHOT is off.
//
// # PostgreSQL
//
// PostgreSQL 12 or newer is required. The encoding of the database and
// client_encoding must be UTF8, which is checked at the first use. Tests run
// with pgx. lib/pq has passed them too.
//
// The Store needs no session to stay the same, so it works with PgBouncer in
// transaction mode. With PgBouncer older than 1.21, set pgx's
// default_query_exec_mode to exec or simple_protocol.
//
// Under REPEATABLE READ and SERIALIZABLE, a claim that loses a race returns
// [once.ErrConflict]. A statement that fails aborts the transaction. A handler
// that ignores such an error gets it again when its claim is settled.
//
// # MySQL and MariaDB
//
// MySQL 8.0.16 or MariaDB 10.6, or newer, is required, with InnoDB and
// go-sql-driver. Tests run on MariaDB. The settings parseTime, loc and
// clientFoundRows may have any value. These are refused at the first use:
// autocommit off, a completion_type other than NO_CHAIN, a fixed timestamp, a
// sql_select_limit, which cuts lists short, a character_set_client that is not
// that of the connection, and READ UNCOMMITTED, which shows answers that are
// rolled back later. With sql_safe_updates, the server refuses Forget.
//
// A deadlock (error 1213) rolls back the transaction, and later statements
// begin another one. If a handler of Transact ignores that error, its later
// writes are rolled back too, and the call returns [once.ErrLeaseLost]. In
// transactions of the caller's, the caller must stop at that error. CREATE,
// ALTER and similar statements commit implicitly. Handlers must not use them.
//
// Claim and Transact change LAST_INSERT_ID of the session. ClaimTx leaves it as
// the caller knows it, which takes a statement more.
//
// By default, the driver prepares each statement, executes and closes it, which
// takes two round trips. The Store prepares its own once on each connection, and
// they take one. They count towards max_prepared_stmt_count: about ten for each
// connection, and never more than 32, however many Stores use the pool. With
// interpolateParams=true nothing is prepared, which some proxies need.
//
// # SQL Server and Azure SQL
//
// This dialect has not yet been tested on a server. Its statements were parsed,
// and the driver was tested against a scripted server. docs/stores/sqlserver.md
// says what that proves, and how to run the conformance suite. Run that first.
//
// SQL Server 2016 or newer is required, with go-mssqldb 1.10 or newer. With
// older drivers, a handler's writes after a rollback by the server are
// committed one by one. READ_COMMITTED_SNAPSHOT and XACT_ABORT may be on or
// off. IMPLICIT_TRANSACTIONS must be off, which is the default. A deadlock
// (error 1205) rolls back the transaction. A handler that ignores it commits
// nothing.
//
// # Positions and the shelf
//
// A method that needs a position waits for another transaction on its row, for
// up to ten seconds or as long as the database allows, and then returns
// [once.ErrConflict]. TransactAt sends two statements besides BEGIN and COMMIT.
// The second makes sure that the database has not ended the transaction
// meanwhile.
//
// In MySQL, BlockedTx takes shared locks. Until its transaction ends, others
// wait to put messages with these ordering keys aside. Two transactions that do
// both may deadlock, which is [once.ErrConflict]. In PostgreSQL under
// REPEATABLE READ and SERIALIZABLE, BlockedTx sees what was committed before
// the snapshot of its transaction. The size of a message is limited by what the
// database accepts in a packet or row, in MySQL by max_allowed_packet.
//
// # The outbox
//
// A relay hears of messages that were put through the same Store: in Transact
// and TransactAt after the commit, in other transactions before it. To find
// other messages, it polls. docs/outbox-row.md says what other programs may
// insert.
//
// Others learn within three seconds that the process of a relay has ended, by a lock
// that [Store.AppearRelay] takes: in SQLite on Linux, MySQL and MariaDB, and in
// PostgreSQL with package stdlib of pgx and without a pooler. Except in SQLite, each
// relay keeps a connection of the pool. Elsewhere, its leases have to lapse.
//
// In PostgreSQL, the frequent statements of relays run in transactions with
// settings of their own: no plan that reads a whole table, and for Sent no wait
// for the disk. The archive has all columns of the outbox. Nothing here reads
// it. In MySQL and SQLite, archiving takes three statements. In SQL Server
// without READ_COMMITTED_SNAPSHOT, a relay waits for the transactions of
// producers.
//
// # SQLite
//
// SQLite 3.24 or newer is required, for the outbox 3.25. Tests run with
// modernc.org/sqlite. mattn/go-sqlite3 has passed them too. Open the file like
// this, or with the same settings of another driver:
//
//	file:once.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate
//
// The journal modes OFF and MEMORY, and read_uncommitted, are refused at the
// first use. Without busy_timeout, a busy database is an error at once. Without
// txlock, a transaction of the caller's that reads before it claims may fail as
// busy without waiting. With synchronous at NORMAL or OFF, a power failure may
// undo commits.
//
// The clock is that of this machine, in milliseconds. If it is set, leases
// change with it. One connection is enough (SetMaxOpenConns(1)). A database in
// memory must have only one.
//
// To parse a statement takes longer than to run it, so the Store prepares its
// own once on each connection: not more than 32, however many Stores use the
// pool. The other drivers prepare by themselves, or have no use for it.
//
// After SQLITE_FULL, SQLITE_IOERR, SQLITE_NOMEM, SQLITE_INTERRUPT or
// RAISE(ROLLBACK), SQLite may have rolled back the transaction. A handler must
// return such an error at once. Then the call fails and has no effect. If the
// handler ignores the error and succeeds, its later writes are committed one by
// one, and the key is parked. If it writes after the error and then returns it,
// those writes are committed too, and nothing notices.
//
// # Handlers that end their transaction
//
// A handler of [once.DoTx] must not end its transaction: neither by Commit or
// Rollback of the *sql.Tx, nor by a statement such as COMMIT, ROLLBACK, or, in
// MySQL, BEGIN or CREATE TABLE. Its writes before or after that may be
// committed, and the next call would write them again. So when work has failed,
// or its claim cannot be settled, Transact checks for that. It parks the keys
// and returns [once.ErrParked]. A person then decides whether the work is done.
//
// Some cases are not noticed:
//
//   - In MySQL and SQLite, work that commits and then succeeds is recorded as
//     done, in a second commit. PostgreSQL notices.
//   - In MySQL, work that rolls back, writes, and commits looks like a
//     deadlock.
//   - If the process ends between the statement of the work and the end of the
//     call, the key is free after a ROLLBACK. After a COMMIT it is unknown once
//     the lease has lapsed.
//   - A handler of TransactAt that ends its transaction makes the call fail. A
//     position cannot be parked, so the next call writes again what was
//     committed.
//   - The work of [once.InTx] gets an error. Its transaction is the caller's.
//
// Statements sent through the *sql.DB are not part of the transaction. If the
// pool has one connection, they wait forever.
//
// # Compatibility
//
// The compatibility of this package is that of package once. A build works with
// tables that a newer build has upgraded, if that declares them compatible. It
// refuses others.
package sqlstore
