package sqlschema

import (
	"errors"
	"reflect"
	"strings"
)

// Failure is what an error of a driver means for a transaction.
type Failure int

const (
	Other       Failure = iota
	Conflict            // the whole transaction must be repeated
	LockTimeout         // the same, after a wait for another transaction
	Duplicate           // the row of an INSERT exists; MySQL only
	Constraint          // the data violate a constraint
	Refused             // the database can never store a value: it is too large, or not valid in its encoding
	Ended               // the statement failed and ended the transaction; SQLite only
	Aborted             // an earlier statement ended the transaction or aborted it; not in MySQL and SQLite
	NotPrepared         // the server has no room for a prepared statement, or no longer has it, and did not run it; MySQL only
)

// mysqlUnknown is the code of errors that have only a text.
const mysqlUnknown = 1105

var (
	mysqlFailures = map[int64]Failure{1062: Duplicate, 1205: LockTimeout, 1213: Conflict,
		3572: LockTimeout,                                          // MySQL: NOWAIT
		1020: Conflict,                                             // MariaDB: the row is newer than the snapshot
		1153: Refused, 1301: Refused, 1366: Refused, 1406: Refused, // over max_allowed_packet, twice; not in its character set; too long
		3819: Constraint, 4025: Constraint, // CHECK, of MySQL and of MariaDB
		1461: NotPrepared, 1243: NotPrepared, 1615: NotPrepared} // too many; unknown; to be prepared again

	sqliteFailures = map[int64]Failure{5: Conflict, 6: Conflict, 18: Refused, 19: Constraint, // busy, locked, too big, constraint
		7: Ended, 9: Ended, 10: Ended, 13: Ended} // no memory, interrupted, I/O, full

	sqlserverFailures = map[int64]Failure{
		1205: Conflict,                 // deadlock victim
		3960: Conflict, 3966: Conflict, // SNAPSHOT: a row is newer; the transaction was rolled back meanwhile
		41301: Conflict, 41302: Conflict, 41305: Conflict, 41325: Conflict, // the same for tables in memory, some of them at COMMIT
		1222: LockTimeout,
		547:  Constraint,
		2628: Refused, 8152: Refused, // truncated
		3902: Aborted, 3903: Aborted, 3926: Aborted, 3971: Aborted, 3989: Aborted, // the transaction has ended
		3930: Aborted, 3998: Aborted, // the transaction cannot be committed
	}
)

// Failure classifies an error of any driver without importing one. Errors of
// PostgreSQL drivers have a method SQLState, those of SQL Server
// SQLErrorNumber, those of MySQL a field Number, those of SQLite a field or
// method Code.
func (d Dialect) Failure(err error) Failure {
	switch d {
	case PostgreSQL:
		var coded interface{ SQLState() string }
		if !errors.As(err, &coded) {
			return Other
		}
		return postgresFailure(coded.SQLState())
	case MySQL:
		code := driverCode(err, "mysql", "Number")
		if code == mysqlUnknown && strings.Contains(err.Error(), "max_allowed_packet") {
			return Refused // of a parameter that was sent in parts
		}
		return mysqlFailures[code]
	case SQLServer:
		return sqlserverFailure(err)
	default:
		return sqliteFailures[driverCode(err, "sqlite", "Code")&0xff] // the other bits are details
	}
}

func postgresFailure(state string) Failure {
	switch {
	case state == "25P02":
		return Aborted
	case state == "55P03":
		return LockTimeout
	case strings.HasPrefix(state, "40") && state != "40003": // statement completion unknown
		return Conflict
	case strings.HasPrefix(state, "23"):
		return Constraint
	case state == "22001", state == "22021", state == "22P05", state == "54000": // too long; not in the encoding, twice; over a limit
		return Refused
	}
	return Other
}

func sqlserverFailure(err error) Failure {
	var coded interface{ SQLErrorNumber() int32 }
	switch {
	case !errors.As(err, &coded):
		return Other
	case coded.SQLErrorNumber() == 0 && strings.Contains(err.Error(), "does not have an active transaction"): // the driver itself
		return Aborted
	}
	return sqlserverFailures[int64(coded.SQLErrorNumber())]
}

// driverCode returns the code of the first error in the tree whose package path
// contains origin and that has a code, or 0.
func driverCode(err error, origin, field string) int64 {
	if err == nil {
		return 0
	}
	if n := codeOf(err, origin, field); n != 0 {
		return n
	}
	switch tree := err.(type) {
	case interface{ Unwrap() error }:
		return driverCode(tree.Unwrap(), origin, field)
	case interface{ Unwrap() []error }:
		for _, branch := range tree.Unwrap() {
			if n := driverCode(branch, origin, field); n != 0 {
				return n
			}
		}
	}
	return 0
}

func codeOf(err error, origin, field string) int64 {
	v := reflect.Indirect(reflect.ValueOf(err))
	if v.Kind() != reflect.Struct || !strings.Contains(v.Type().PkgPath(), origin) {
		return 0
	}
	if coded, ok := err.(interface{ Code() int }); ok {
		return int64(coded.Code())
	}
	switch f := v.FieldByName(field); {
	case f.CanInt():
		return f.Int()
	case f.CanUint():
		return int64(f.Uint())
	}
	return 0
}
