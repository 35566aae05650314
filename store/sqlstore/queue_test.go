//go:build go1.25

package sqlstore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once/internal/scope"
	"github.com/effectively-once/once/store/sqlschema"
)

func TestWritersTakeTurnsInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(sqlschema.SQLite)
		end, err := q.wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		for i := range 20 {
			go func() {
				end, err := q.wait(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i) // it is nobody else's turn
				end()
				end() // a second time ends no other's turn
			}()
			synctest.Wait()
		}
		end()
		synctest.Wait()
		if len(order) != 20 || !slices.IsSorted(order) {
			t.Errorf("the turns were %v", order)
		}
	})
}

func TestWaitingForATurnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(sqlschema.SQLite)
		end, err := q.wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := q.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of its context, it returned %v", err)
		}
		begun := time.Now()
		inside, err := q.wait(scope.InTx(t.Context()))
		if err != nil || time.Since(begun) != 0 {
			t.Errorf("work in a transaction waited %v for the end of it: %v", time.Since(begun), err)
		}
		inside()
		late, err := q.wait(t.Context())
		if err != nil || time.Since(begun) != longestTurn {
			t.Errorf("it waited %v, want %v, and then SQLite decides: %v", time.Since(begun), longestTurn, err)
		}
		late() // ends nobody's turn
		if len(q) != 1 {
			t.Error("the turn that was held is over")
		}
		end()
		if len(q) != 0 {
			t.Error("the turn is not over")
		}
	})
}

func TestOnlySQLiteHasAQueue(t *testing.T) {
	for _, d := range []sqlschema.Dialect{sqlschema.PostgreSQL, sqlschema.MySQL, sqlschema.SQLServer} {
		if newQueue(d) != nil {
			t.Errorf("dialect %v has one", d)
		}
	}
}
