// Package sqlstore remembers keys in a database behind database/sql: SQLite, PostgreSQL, MySQL or MariaDB, SQL Server.
// The record of a key commits with the rows of its work. It imports no driver, and works with any that keeps to
// database/sql.
//
// # Promise
//
// It keeps every rule of [once.TxStore], [once.Lister], [store.Registry], [store.Positions], [store.TxShelf],
// [store.Outbox], [store.Archivable] and [store.Reopener], as long as it talks to one writable primary that loses no
// commit: never give it a replica. Time is the database's clock; the time zone of a session changes nothing. The tables
// come from [Store.Migrate], or from the SQL that [Schema] returns. After that, a role that may only SELECT, INSERT,
// UPDATE and DELETE is enough. What is kept for consumers, and of messages on their way out, has tables of its own,
// which such a role must be given, too; until they are made, only the methods that need them fail, with
// [once.ErrInvalid]. The tables are those of store/pgstore, so both can be used at once.
//
// # A claim that meets a transaction in flight on its key
//
//   - PostgreSQL: it sees the transaction's lock and returns Running with LeaseLeft 0 at once. Extend, Settle and a
//     store that names the same tables in another way (Schema set, or left to the search_path) wait, up to ctx.
//   - MySQL, MariaDB: the claim waits for the transaction. In Claim and Transact at most for Request.Wait, or 250 ms where
//     that is longer, and then returns Running with LeaseLeft 0 and gives up its connection; the server notices that when
//     the other transaction has ended. If no transaction has the row locked then, the claim was slow, and is repeated. In ClaimTx at most for ctx, whose end costs the connection, or
//     innodb_lock_wait_timeout, 50 seconds if it was not set, after which it is [once.ErrConflict].
//   - SQLite: there is one writer at a time, so every claim waits for every transaction that has written. The writers of
//     one Store wait in line, in their order, up to ten seconds; what comes from elsewhere is waited for as long as the
//     connection's busy_timeout says. After that it is [once.ErrConflict], which [once.DoTx] repeats until its context
//     ends, or for about a minute without a deadline, and [once.Do] four times.
//   - SQL Server: it waits 100 ms for the transaction and then returns Running with LeaseLeft 0. Extend and Settle wait, up to ctx,
//     and so do Get and List where READ_COMMITTED_SNAPSHOT is off.
//
// # PostgreSQL
//
// Version 12 or newer. The database and client_encoding are UTF8, which is checked at the first use. Tests run with pgx; lib/pq has passed them, too. Nothing is kept in a session, so
// PgBouncer's transaction mode is fine; with PgBouncer before 1.21 set pgx's default_query_exec_mode to exec or
// simple_protocol. Under REPEATABLE READ and SERIALIZABLE a lost race is [once.ErrConflict]. A statement that fails
// ends the transaction: a handler that passes the error over gets it back when its claim is settled.
//
// # MySQL and MariaDB
//
// MySQL 8.0, MariaDB 10.6, or newer, with InnoDB and go-sql-driver; tests run on MariaDB. The settings parseTime, loc
// and clientFoundRows are free; autocommit off, completion_type other than NO_CHAIN and a timestamp that is set are refused at the
// first use, and READ UNCOMMITTED is not supported: it shows the answers of transactions that are rolled back later. A deadlock (error 1213) ends the transaction without a
// word. In Transact, a handler that passes such an error over commits nothing: what it goes on to write is rolled back,
// with [once.ErrLeaseLost]. In a transaction of the caller's, that is the caller's to see to. CREATE, ALTER and the
// like commit on their own: they are not supported in a handler.
//
// # SQL Server and Azure SQL
//
// No server has been run with this dialect: its statements were parsed, and the driver was tried against a server that
// is a script. docs/stores/sqlserver.md says what that shows, and how to run the conformance suite, which is the first
// thing to do.
//
// SQL Server 2016 or newer, with go-mssqldb 1.10 or newer: with older ones, what a handler writes after the server has
// rolled back commits by itself. READ_COMMITTED_SNAPSHOT may be on or off, XACT_ABORT too; IMPLICIT_TRANSACTIONS must
// be off, as it is by default. A deadlock (error 1205) ends the transaction, and a handler that passes it over commits
// nothing.
//
// # Positions and the shelf
//
// What meets a transaction in flight on a position waits for it, up to ten seconds or what the database allows, and is
// [once.ErrConflict] then. TransactAt costs two statements besides its BEGIN and COMMIT: the second makes sure that the
// database has not ended the transaction meanwhile. In MySQL, BlockedTx reads in share mode: until its transaction
// ends, others wait with putting messages aside, and two that do both can meet in a deadlock, which is
// [once.ErrConflict]. Under REPEATABLE READ and SERIALIZABLE in PostgreSQL, it sees what was committed before the
// snapshot of its transaction. The size of a message is what the database takes in one packet or row:
// max_allowed_packet in MySQL.
//
// # The outbox
//
// A relay hears of messages that were put through the same Store, after the commit in Transact and TransactAt, and
// before it in other transactions; of all others it hears nothing, and has to look. What other programs may insert is
// in docs/outbox-row.md. In PostgreSQL, what relays do all the time runs in transactions with settings of their own: no
// plans that read a whole table, and no wait for the disk in Sent. The archive has all columns, and no reader here.
// MySQL is 8.0.16 or newer, for the defaults and checks of the row; in MySQL and SQLite, archiving takes three
// statements. In SQL Server without READ_COMMITTED_SNAPSHOT, a relay waits for the transactions of producers.
//
// # SQLite
//
// Version 3.24 or newer, for the outbox 3.25. Tests run with modernc.org/sqlite; mattn/go-sqlite3 has passed them, too.
// Open the file like this, or with the same settings of another driver:
//
//	file:once.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate
//
// A journal that is off, or in memory, and read_uncommitted are refused at the first use.
// Without busy_timeout a busy database is an error at once. Without txlock, a transaction of the caller's that has read
// before it claims can fail as busy without waiting. With synchronous at NORMAL or OFF, a power cut may undo commits.
// The clock is this machine's, in milliseconds, and nothing hides its steps. One connection is enough
// (SetMaxOpenConns(1)), and it is needed for a database in memory. After SQLITE_FULL, SQLITE_IOERR, SQLITE_NOMEM,
// SQLITE_INTERRUPT or a RAISE(ROLLBACK), SQLite may have ended the transaction by itself. A handler must return such an
// error at once: the call then fails, and nothing is left. If it passes over the error, its later writes are committed one
// by one, and the key is parked. If it writes on and returns the error all the same, nothing notices it.
//
// # Everywhere
//
// A handler of [once.DoTx] must not end its transaction: neither by Commit or Rollback of the *sql.Tx, nor by a statement
// such as COMMIT, ROLLBACK, or, in MySQL, BEGIN or CREATE TABLE. What it wrote before or after that may be committed, and
// would be written again by the next call. So Transact looks, when work has failed and when its claim cannot be settled,
// and parks the keys, with [once.ErrParked]: a person decides whether the work is done. What cannot be noticed:
//
//   - work that commits and then succeeds, in MySQL and SQLite: it is recorded as done, in a commit of its own. In
//     PostgreSQL it is noticed.
//   - in MySQL, work that rolls back, writes, and commits that itself: it looks like a deadlock.
//   - a process that ends between the statement and the call's end: the key is free after a ROLLBACK, and unknown when
//     the lease has lapsed after a COMMIT.
//   - a handler of TransactAt that ends its transaction: the call fails, a position cannot be parked, and what was
//     committed is written again with it.
//   - the work of [once.InTx], in a transaction of the caller's: it gets an error, and the transaction is the caller's.
//
// Statements sent through the *sql.DB are not part of the transaction; with one connection they wait for ever.
//
// The compatibility of this package is that of package once. A build works with the tables of any newer one that says
// so, and refuses others.
package sqlstore
