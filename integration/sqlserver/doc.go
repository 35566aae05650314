// Package sqlserver tests store/sqlstore with SQL Server. There are two kinds
// of tests.
//
// Those that always run need no server. They parse every statement with a
// parser for Transact-SQL, and connect Microsoft's driver to a scripted server.
// They show what the store sends, and what it does with the answers, but not
// how a server executes the statements.
//
// The others need ONCE_TEST_SQLSERVER, the DSN of a database whose name begins
// with once_test. They change the settings of that database.
// docs/stores/sqlserver.md says how to run them.
package sqlserver
