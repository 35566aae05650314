// Package sqlserver holds the tests of store/sqlstore for SQL Server. No server runs here, so they are of two kinds.
//
// Those that always run parse every statement with a parser for Transact-SQL, and let Microsoft's driver talk to a
// server that is a script: they show what reaches a server, and what the store makes of its answers. Nothing in them
// shows what a server makes of the statements.
//
// That is what the others are for. They need ONCE_TEST_SQLSERVER, the DSN of a database whose name begins with
// once_test, and change the settings of that database. docs/stores/sqlserver.md says how to run them.
package sqlserver
