package sqlserver_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/sqlschema"
	"github.com/effectively-once/once/store/sqlstore"
	mssql "github.com/microsoft/go-mssqldb"
)

func key(id string) once.Key { return once.Key{Scope: "tenant", Operation: "pay", ID: id} }

func owner(name string) (t [16]byte) {
	copy(t[:], name)
	return t
}

func request(id, who string) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: key(id), Owner: owner(who)}, Lease: time.Minute,
		Cause: key("cause of " + id).UUID()}
}

// record is a row with the columns of the statements.
func record(r once.ClaimRequest, status int64) []any {
	id := r.Key.UUID()
	var cause any
	if r.Cause != ([16]byte{}) {
		cause = r.Cause[:]
	}
	return []any{id[:], r.Key.Scope, r.Key.Operation, r.Key.ID, int64(1), status, int64(1), r.Owner[:], int64(60_000_000),
		int64(5), nil, nil, nil, nil, "", int64(0), int64(0), "", int64(1), int64(1), cause, int64(0)}
}

// inFlight is the row that a claim returns after error 1222.
func inFlight(r once.ClaimRequest) []any {
	row := record(r, 1)
	row[6], row[7], row[8], row[9], row[18], row[19] = int64(0), nil, int64(0), int64(0), int64(0), int64(0)
	row[20] = nil
	return row
}

// Texts by which kindOf recognizes a statement, and the number of an error.
const (
	claims   = "BEGIN TRY"
	settles  = "SET status = "
	effects  = "INSERT INTO effect"
	reads    = "SELECT (r.[key])"
	deadlock = 1205
)

// kindOf returns the purpose of a statement.
func kindOf(text string) string {
	for _, part := range []string{claims, settles, effects, reads} {
		if strings.Contains(text, part) {
			return part
		}
	}
	return text
}

func kindsOf(texts []string) (all []string) {
	for _, text := range texts {
		all = append(all, kindOf(text))
	}
	return all
}

// granting grants every claim and changes one row in every settlement, unless
// other has another answer.
func granting(r once.ClaimRequest, other map[string]answer) func(question) answer {
	return func(q question) answer {
		if a, ok := other[kindOf(q.text)]; ok {
			return a
		}
		if kindOf(q.text) == claims {
			return rows(record(r, 1))
		}
		return answer{affected: 1}
	}
}

func TestClaimInOneStatement(t *testing.T) {
	r := request("größe", "me")
	server, db := serve(t, granting(r, nil))
	rec, err := sqlstore.New(db, sqlstore.SQLServer, nil).Claim(t.Context(), r)
	if err != nil || rec.Key != r.Key || rec.Owner != r.Owner || rec.Cause != r.Cause || rec.Status != once.Running || rec.Attempt != 1 || rec.LeaseLeft != time.Minute {
		t.Errorf("Claim returned %+v, %v", rec, err)
	}
	asked := server.questions()
	if len(asked) != 1 || asked[0].inTx {
		t.Fatalf("a claim takes %d statements: %+v", len(asked), asked)
	}
	id := r.Key.UUID()
	want := []any{id[:], "tenant", "pay", "größe", r.Owner[:], int64(60_000_000), nil, r.Cause[:], int64(0)}
	if !reflect.DeepEqual(asked[0].args, want) {
		t.Errorf("its parameters are %#v, want %#v", asked[0].args, want)
	}
	// NULL is sent as a text. The CAST of each parameter converts it to the
	// type of its column.
	if want := "@p1 varbinary(16),@p2 nvarchar(6),@p3 nvarchar(3),@p4 nvarchar(5),@p5 varbinary(16),@p6 bigint,@p7 nvarchar(1),@p8 varbinary(16),@p9 bigint"; asked[0].types != want {
		t.Errorf("they are declared as %q, want %q", asked[0].types, want)
	}
	if err := check(asked[0].text, kinds["Insert"]...); err != nil {
		t.Error(err)
	}
}

func TestClaimThatMeetsATransactionInFlight(t *testing.T) {
	r := request("1", "me")
	for name, a := range map[string]answer{
		"at once":                rows(inFlight(r)),
		"in the last statement":  {sets: [][][]any{{}, {inFlight(r)}}},
		"in the last, with rows": {sets: [][][]any{{inFlight(r)}, {}}},
	} {
		server, db := serve(t, granting(r, map[string]answer{claims: a}))
		rec, err := sqlstore.New(db, sqlstore.SQLServer, nil).Claim(t.Context(), r)
		if err != nil || rec.Status != once.Running || rec.LeaseLeft != 0 || rec.Owner != [16]byte{} || rec.Key != r.Key {
			t.Errorf("%s: Claim returned %+v, %v; want Running with LeaseLeft 0", name, rec, err)
		}
		if n := len(server.texts()); n != 1 {
			t.Errorf("%s: it took %d statements, want 1: a claim does not wait for it here", name, n)
		}
	}
}

func TestClaimThatLosesARaceLooksAgain(t *testing.T) {
	mine, theirs := request("1", "me"), request("1", "them")
	tries := 0
	_, db := serve(t, func(question) answer {
		if tries++; tries < 3 {
			return answer{} // the index has refused it, and nothing is selected
		}
		return rows(record(theirs, 1))
	})
	rec, err := sqlstore.New(db, sqlstore.SQLServer, nil).Claim(t.Context(), mine)
	if err != nil || rec.Owner != theirs.Owner || tries != 3 {
		t.Errorf("after %d tries, Claim returned %+v, %v; want the winner", tries, rec, err)
	}
}

// work is a body that writes a row and settles its claim as done.
func work(rs []once.ClaimRequest) func(*sql.Tx, []once.Record) ([]once.Settlement, error) {
	return func(tx *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
		_, err := tx.ExecContext(context.Background(), "INSERT INTO effect (name) VALUES (@p1)", "row")
		return []once.Settlement{settlement(rs[0], recs[0])}, err
	}
}

func settlement(r once.ClaimRequest, rec once.Record) once.Settlement {
	return once.Settlement{Fence: once.Fence{Key: r.Key, Owner: r.Owner, Attempt: rec.Attempt}, Status: once.Done,
		KeepOutcome: time.Hour, KeepKey: 2 * time.Hour, Outcome: once.Outcome{Body: []byte("answer")}}
}

func TestTransactIsOneTransaction(t *testing.T) {
	rs := []once.ClaimRequest{request("1", "me")}
	server, db := serve(t, granting(rs[0], nil))
	recs, err := sqlstore.New(db, sqlstore.SQLServer, nil).Transact(t.Context(), rs, work(rs))
	if err != nil || len(recs) != 1 || recs[0].Owner != rs[0].Owner {
		t.Errorf("Transact returned %+v, %v", recs, err)
	}
	if got, want := kindsOf(server.texts()), []string{"BEGIN", claims, effects, settles, "COMMIT"}; !slices.Equal(got, want) {
		t.Errorf("the server was told %q, want %q", got, want)
	}
	for _, q := range server.questions()[1:] {
		if !q.inTx {
			t.Errorf("outside the transaction: %s", q.text)
		}
	}
	if err := check(server.texts()[3], kinds["Settle"]...); err != nil {
		t.Error(err)
	}
}

// The server has rolled back, and the handler continues as if nothing had
// happened.
func TestRollbackByTheServerIsNotPassedOver(t *testing.T) {
	rs := []once.ClaimRequest{request("1", "me")}
	for _, goesOn := range []bool{false, true} {
		server, db := serve(t, granting(rs[0], map[string]answer{effects: {number: deadlock, message: "deadlock", ended: true}}))
		_, err := sqlstore.New(db, sqlstore.SQLServer, nil).Transact(t.Context(), rs,
			func(tx *sql.Tx, recs []once.Record) ([]once.Settlement, error) {
				_, _ = tx.Exec("INSERT INTO effect (name) VALUES (@p1)", "lost")
				if goesOn {
					_, _ = tx.Exec("INSERT INTO effect (name) VALUES (@p1)", "alone")
				}
				return []once.Settlement{settlement(rs[0], recs[0])}, nil
			})
		if err == nil || errors.Is(err, once.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "nothing can be committed") {
			t.Errorf("Transact returned %v", err)
		}
		if got, want := kindsOf(server.texts()), []string{"BEGIN", claims, effects, reads}; !slices.Equal(got, want) {
			t.Errorf("the server was told %q, want %q: what comes later would commit by itself, and the look at the record is last", got, want)
		}
	}
}

func TestErrorsOfTheWork(t *testing.T) {
	rs := []once.ClaimRequest{request("1", "me")}
	for number, conflict := range map[int32]bool{1205: true, 1222: true, 3960: true, 41302: true, 2627: false, 547: false, 40501: false, 3930: false} {
		_, db := serve(t, granting(rs[0], map[string]answer{effects: failed(number)}))
		_, err := sqlstore.New(db, sqlstore.SQLServer, nil).Transact(t.Context(), rs, work(rs))
		if err == nil || errors.Is(err, once.ErrConflict) != conflict || errors.Is(err, once.ErrOutcomeUnknown) {
			t.Errorf("after error %d, Transact returned %v; a conflict: %v", number, err, conflict)
		}
	}
}

func TestSettlementOfNoRowRollsBack(t *testing.T) {
	rs := []once.ClaimRequest{request("1", "me")}
	settled := record(rs[0], int64(once.Done))
	settled[12] = []byte("answer")
	for name, found := range map[string]answer{"the row is gone": {sets: [][][]any{{}}}, "somebody has settled it": rows(settled)} {
		server, db := serve(t, granting(rs[0], map[string]answer{settles: {}, reads: found}))
		_, err := sqlstore.New(db, sqlstore.SQLServer, nil).Transact(t.Context(), rs, work(rs))
		if !errors.Is(err, once.ErrLeaseLost) {
			t.Errorf("%s: Transact returned %v, want ErrLeaseLost", name, err)
		}
		if got := kindsOf(server.texts()); slices.Contains(got, "COMMIT") || !slices.Equal(got[len(got)-2:], []string{"ROLLBACK", reads}) {
			t.Errorf("%s: the server was told %q, want no COMMIT, a ROLLBACK, and a look at what it left", name, got)
		}
	}
}

func TestErrorsOfTheCommit(t *testing.T) {
	rs := []once.ClaimRequest{request("1", "me")}
	for name, c := range map[string]struct {
		answer
		want error
	}{
		"the connection ends":   {answer{hangUp: true}, once.ErrOutcomeUnknown},
		"there is none to end":  {failed(3902), once.ErrOutcomeUnknown},
		"the service is busy":   {failed(40501), once.ErrOutcomeUnknown},
		"the service moves":     {failed(40613), once.ErrOutcomeUnknown},
		"the memory table says": {failed(41305), once.ErrConflict},
		"a victim":              {failed(deadlock), once.ErrConflict},
	} {
		_, db := serve(t, granting(rs[0], map[string]answer{"COMMIT": c.answer}))
		_, err := sqlstore.New(db, sqlstore.SQLServer, nil).Transact(t.Context(), rs, work(rs))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: Transact returned %v, want %v", name, err, c.want)
		}
	}
}

func TestImplicitTransactionsAreRefused(t *testing.T) {
	r := request("1", "me")
	server, db := serve(t, granting(r, nil))
	server.implicit = true
	if _, err := sqlstore.New(db, sqlstore.SQLServer, nil).Claim(t.Context(), r); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("Claim returned %v, want ErrInvalid", err)
	}
	if texts := server.texts(); len(texts) > 0 {
		t.Errorf("it ran %q", texts)
	}
}

func TestMigrateWithoutItsLock(t *testing.T) {
	server, db := serve(t, func(q question) answer {
		if strings.Contains(q.text, "sp_getapplock") {
			return rows([]any{int64(-1)})
		}
		return answer{}
	})
	err := sqlstore.New(db, sqlstore.SQLServer, nil).Migrate(t.Context())
	if err == nil || !strings.Contains(err.Error(), "try again later") {
		t.Errorf("Migrate returned %v", err)
	}
	for _, text := range server.texts() {
		if strings.Contains(text, "CREATE") {
			t.Errorf("without the lock, it ran %s", text)
		}
	}
}

func TestErrorsOfTheDriver(t *testing.T) {
	for number, want := range map[int32]sqlschema.Failure{
		1205: sqlschema.Conflict, 3960: sqlschema.Conflict, 3966: sqlschema.Conflict, 41325: sqlschema.Conflict,
		1222: sqlschema.LockTimeout,
		3902: sqlschema.Aborted, 3903: sqlschema.Aborted, 3930: sqlschema.Aborted, 3971: sqlschema.Aborted, 3998: sqlschema.Aborted,
		547: sqlschema.Constraint, 2628: sqlschema.Refused, 8152: sqlschema.Refused,
		2627: sqlschema.Other, 2601: sqlschema.Other, 0: sqlschema.Other,
		40501: sqlschema.Other, 40613: sqlschema.Other, 49918: sqlschema.Other, 40197: sqlschema.Other, 10928: sqlschema.Other,
	} {
		plain := mssql.Error{Number: number}
		for _, err := range []error{plain, fmt.Errorf("insert: %w", plain), errors.Join(errors.New("first"), plain)} {
			if got := sqlschema.SQLServer.Failure(err); got != want {
				t.Errorf("error %d as %T means %v, want %v", number, err, got, want)
			}
		}
		if got := sqlschema.MySQL.Failure(plain); got != sqlschema.Other {
			t.Errorf("in MySQL, error %d of SQL Server means %v", number, got)
		}
	}
	for _, err := range []error{nil, errors.New("1205"), sql.ErrTxDone} {
		if got := sqlschema.SQLServer.Failure(err); got != sqlschema.Other {
			t.Errorf("%v means %v", err, got)
		}
	}
}
