// Package sqlschema has what stores on SQL databases share, so that several of
// them can use one database at once: the names of the tables, their versions,
// and the migrations from each version to the next. Below it are the
// statements: package records has those on keys for database/sql, package
// consuming those for consumers, and package publishing those for the outbox.
// Package sqltx has transactions of database/sql.
//
// The package serves the stores of this project, their tests and the command.
// Its names may change in any release.
//
// The names of all tables begin with the prefix of the store. They have a row
// for each
//
//   - <prefix>record: key
//   - <prefix>schema: version of the tables that was applied
//   - <prefix>consumer: consumer at a source
//   - <prefix>position: partition of a log that a consumer has opened
//   - <prefix>shelf: message that a consumer put aside
//   - <prefix>outbox: message to publish
//   - <prefix>outbox_archive: message that was published or discarded, and
//     archived
//   - <prefix>lane: lane of the outbox
//   - <prefix>relay: relay at work
//
// The names of indexes begin with the prefix too, so stores with different
// prefixes can share a database.
//
// Every store keeps these rules for the row of a record:
//
//   - Times are microseconds since 1970 on the database's clock, [Names.Now].
//     Durations are added in the database.
//   - status has the numbers of once.Status: 0 absent, 1 running, 2 unknown, 3
//     parked, 4 done. Lapsed leases, expired outcomes and forgotten keys are
//     not written. They are computed when the row is read.
//   - owner remains when a key is released. It tells a repeated release from a
//     stale one. Readers hide it.
//   - lease_until is null unless status is 1 or 2. In 2, it is when the attempt
//     ended.
//   - key_until is null unless status is 0 or 4, outcome_until unless it is 4.
//   - due is the next time at which there is something to forget: first the
//     earlier of outcome_until and key_until, then key_until. It is null if
//     there is nothing.
//   - flags: 1 rejected, 2 omitted.
//   - A claim writes all columns except the key and its parts. Only created and
//     attempt depend on what was there.
//
// Builds of different versions can share tables. [Migration.Compatible] says
// which.
package sqlschema
