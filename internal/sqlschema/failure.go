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
	Conflict            // the database wants the whole transaction again
	LockTimeout         // so it does, after waiting for another transaction
	Duplicate           // the row of an INSERT is there; MySQL only
	Constraint          // the data are refused
	Refused             // so is one value, at any time: it is too large, or not valid in its encoding
	Ended               // the statement has failed, and the transaction has ended with it; SQLite only
	Aborted             // an earlier statement has ended the transaction, or made it one that cannot be committed; not in MySQL and SQLite
)

var (
	mysqlFailures = map[int64]Failure{1062: Duplicate, 1205: LockTimeout, 1213: Conflict,
		3572: LockTimeout,                                          // MySQL: NOWAIT
		1020: Conflict,                                             // MariaDB: the row is newer than the snapshot
		1153: Refused, 1301: Refused, 1366: Refused, 1406: Refused, // over max_allowed_packet, twice; not in its character set; too long
		3819: Constraint, 4025: Constraint} // CHECK, of MySQL and of MariaDB

	sqliteFailures = map[int64]Failure{5: Conflict, 6: Conflict, 18: Refused, 19: Constraint, // busy, locked, too big, constraint
		7: Ended, 9: Ended, 10: Ended, 13: Ended} // no memory, interrupted, I/O, full

	sqlserverFailures = map[int64]Failure{
		1205: Conflict,                 // chosen as the victim of a deadlock
		3960: Conflict, 3966: Conflict, // SNAPSHOT: a row is newer; the transaction was rolled back meanwhile
		41301: Conflict, 41302: Conflict, 41305: Conflict, 41325: Conflict, // the same for tables in memory, some of them at COMMIT
		1222: LockTimeout,
		547:  Constraint,
		2628: Refused, 8152: Refused, // truncated
		3902: Aborted, 3903: Aborted, 3926: Aborted, 3971: Aborted, 3989: Aborted, // there is no transaction any more
		3930: Aborted, 3998: Aborted, // there is one that cannot be committed
	}
)

// Failure tells errors apart by what drivers have in common, so that none is imported: those of PostgreSQL
// have a method SQLState, those of SQL Server SQLErrorNumber, those of MySQL a field Number, those of SQLite a Code.
func (d Dialect) Failure(err error) Failure {
	switch d {
	case PostgreSQL:
		var coded interface{ SQLState() string }
		if !errors.As(err, &coded) {
			return Other
		}
		return postgresFailure(coded.SQLState())
	case MySQL:
		return mysqlFailures[number(err, "mysql", "Number")]
	case SQLServer:
		return sqlserverFailure(err)
	default:
		return sqliteFailures[number(err, "sqlite", "Code")&0xff] // the rest of it says more about the same
	}
}

func postgresFailure(state string) Failure {
	switch {
	case state == "25P02":
		return Aborted
	case state == "55P03":
		return LockTimeout
	case strings.HasPrefix(state, "40") && state != "40003": // which says that nobody knows
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

// number is the number of the first error in a tree that is of a package with such a name and has one; else 0.
func number(err error, origin, field string) int64 {
	if err == nil {
		return 0
	}
	if n := numberOf(err, origin, field); n != 0 {
		return n
	}
	switch tree := err.(type) {
	case interface{ Unwrap() error }:
		return number(tree.Unwrap(), origin, field)
	case interface{ Unwrap() []error }:
		for _, branch := range tree.Unwrap() {
			if n := number(branch, origin, field); n != 0 {
				return n
			}
		}
	}
	return 0
}

func numberOf(err error, origin, field string) int64 {
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
