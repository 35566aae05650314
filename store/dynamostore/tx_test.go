package dynamostore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store/dynamostore"
)

// eager is the retryer of the SDK without its pauses.
func eager() aws.Retryer {
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		o.Retryables = append(o.Retryables, retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			return aws.BoolTernary(errors.Is(err, errLost) || strings.Contains(err.Error(), "unexpected EOF"))
		}))
	})
}

func stock(name string, made int) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"name": &types.AttributeValueMemberS{Value: name},
		"made": &types.AttributeValueMemberN{Value: strconv.Itoa(made)}}
}

// sell takes one from a stock, on the condition that there is one.
func (s *shop) sell(tx *dynamostore.Tx, name string) error {
	return tx.Update(types.Update{TableName: &s.table, Key: s.key(name), UpdateExpression: aws.String("SET made = made - :one"),
		ConditionExpression: aws.String("made >= :one"), ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}}})
}

// A condition of the work that does not hold is named, and nothing is applied.
func TestAConditionOfTheWork(t *testing.T) {
	w := newWorld(t)
	must(t, w.fill("stock", 0))
	_, err := once.DoTx(t.Context(), w.store, pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		return "sold", errors.Join(w.effect(tx, "row"), w.sell(tx, "stock"))
	})
	var condition *dynamostore.ConditionError
	if !errors.As(err, &condition) {
		t.Fatalf("DoTx returned %v", err)
	}
	if condition.Write.Update == nil || condition.Item["made"].(*types.AttributeValueMemberN).Value != "0" ||
		!strings.Contains(condition.Error(), "shop") {
		t.Errorf("the error is %v, of %+v, which is %v", condition, condition.Write, condition.Item)
	}
	if rec, err := w.store.Get(t.Context(), pay.For("1").Key()); err != nil || rec.Status != once.Absent {
		t.Errorf("the record is %v, %v", rec, err)
	}
	if n, err := w.count(t.Context(), "row"); err != nil || n != 0 {
		t.Errorf("there were %d effects, %v", n, err)
	}
	must(t, w.fill("stock", 1))
	got, err := once.DoTx(t.Context(), w.store, pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		return "sold", errors.Join(w.effect(tx, "row"), w.sell(tx, "stock"))
	})
	if err != nil || got != "sold" {
		t.Errorf("with stock, DoTx returned %q, %v", got, err)
	}
	w.answers(t, "sold", 1)
}

// If another call has finished the work, conditions may fail because of that: the
// answer is its record.
func TestAConditionThatFailsBecauseTheWorkIsDone(t *testing.T) {
	w := newWorld(t)
	must(t, w.fill("stock", 1))
	runs := 0
	work := func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		return "sold", errors.Join(w.effect(tx, "row"), w.sell(tx, "stock"))
	}
	got, err := once.DoTx(t.Context(), w.store, pay.For("1"), func(ctx context.Context, tx *dynamostore.Tx) (string, error) {
		if runs++; runs == 1 {
			other := dynamostore.New(dial(w.url), nil)
			_, err := once.DoTx(t.Context(), other, pay.For("1"), work)
			must(t, err)
		}
		return work(ctx, tx)
	})
	if err != nil || got != "sold" || runs != 1 {
		t.Errorf("DoTx returned %q, %v after %d runs", got, err, runs)
	}
	w.answers(t, "sold", 1)
}

// What the service cannot take is an error before anything is sent.
func TestATransactionThatIsTooLarge(t *testing.T) {
	w := newWorld(t)
	for name, fill := range map[string]func(tx *dynamostore.Tx) error{
		"too many items": func(tx *dynamostore.Tx) (err error) {
			for i := range 100 {
				err = errors.Join(err, w.effect(tx, fmt.Sprint(i)))
			}
			return err
		},
		"too many bytes": func(tx *dynamostore.Tx) (err error) {
			for i := range 12 {
				it := w.key(fmt.Sprint(i))
				it["text"] = &types.AttributeValueMemberS{Value: strings.Repeat("x", 390<<10)}
				err = errors.Join(err, tx.Put(types.Put{TableName: &w.table, Item: it}))
			}
			return err
		},
	} {
		before := w.Requests()["TransactWriteItems"]
		_, err := once.DoTx(t.Context(), w.store, pay.For(name), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
			return "", fill(tx)
		})
		if !errors.Is(err, once.ErrInvalid) || w.Requests()["TransactWriteItems"] != before {
			t.Errorf("%s: DoTx returned %v after %v", name, err, w.Requests())
		}
	}
	_, err := once.DoTx(t.Context(), w.store, pay.For("one item twice"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		return "", errors.Join(w.effect(tx, "a"), w.effect(tx, "a"))
	})
	if !errors.Is(err, once.ErrInvalid) {
		t.Errorf("one item twice: DoTx returned %v", err)
	}
}

// An outcome that fits into no item is refused before it is sent, and Do records
// the end without it.
func TestAnOutcomeOverTheLimitOfAnItem(t *testing.T) {
	w := newWorld(t)
	s := dynamostore.New(dial(w.url), &dynamostore.Options{Options: once.Options{MaxOutcome: 1 << 20}})
	large := strings.Repeat("x", 500<<10)
	got, err := once.Do(t.Context(), s, pay.For("1"), func(context.Context, once.Key) (string, error) { return large, nil })
	if err != nil || got != large {
		t.Errorf("Do returned %d bytes, %v", len(got), err)
	}
	_, err = once.Do(t.Context(), s, pay.For("1"), func(context.Context, once.Key) (string, error) { return "again", nil })
	if !errors.Is(err, once.ErrOutcomeUnavailable) {
		t.Errorf("the second Do returned %v", err)
	}
	_, err = once.DoTx(t.Context(), s, pay.For("2"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		return large, w.effect(tx, "row")
	})
	if n, _ := w.count(t.Context(), "row"); !errors.Is(err, once.ErrOutcomeRefused) || n != 0 {
		t.Errorf("DoTx returned %v with %d effects", err, n)
	}
}

// Transact ends its transaction, and after that it takes nothing.
func TestWhoEndsATransaction(t *testing.T) {
	w := newWorld(t)
	var kept *dynamostore.Tx
	_, err := once.DoTx(t.Context(), w.store, pay.For("1"), func(ctx context.Context, tx *dynamostore.Tx) (string, error) {
		kept = tx
		if err := tx.Commit(ctx); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("Commit in the work returned %v", err)
		}
		if err := tx.Rollback(); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("Rollback in the work returned %v", err)
		}
		return "paid", w.effect(tx, "row")
	})
	must(t, err)
	own := w.store.Begin()
	must(t, own.Rollback())
	for name, tx := range map[string]*dynamostore.Tx{"of Transact": kept, "of the caller": own} {
		if err := w.effect(tx, "late"); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: a write after its end returned %v", name, err)
		}
		if _, err := w.store.ClaimTx(t.Context(), tx, nil); !errors.Is(err, once.ErrInvalid) {
			t.Errorf("%s: ClaimTx after its end returned %v", name, err)
		}
	}
	if err := own.Commit(t.Context()); !errors.Is(err, once.ErrInvalid) {
		t.Errorf("Commit after Rollback returned %v", err)
	}
	w.answers(t, "paid", 1)
}

// A speculative transaction for a new key is one request.
func TestRequests(t *testing.T) {
	w := newWorld(t)
	quick := *pay
	quick.Speculative = true
	plain := func(context.Context, once.Key) (string, error) { return "paid", nil }
	inTx := func(_ context.Context, tx *dynamostore.Tx) (string, error) { return "paid", w.effect(tx, "row") }
	calls := func(op *once.Operation[string], id string, tx bool) func() error {
		return func() (err error) {
			if tx {
				_, err = once.DoTx(t.Context(), w.store, op.For(id), inTx)
			} else {
				_, err = once.Do(t.Context(), w.store, op.For(id), plain)
			}
			return err
		}
	}
	must(t, calls(pay, "the first asks for the time", false)())
	for _, c := range []struct {
		name                 string
		call                 func() error
		gets, puts, transact int
	}{
		{"Do", calls(pay, "1", false), 0, 2, 0},
		{"Do, repeated", calls(pay, "1", false), 0, 1, 0},
		{"DoTx", calls(pay, "2", true), 1, 0, 1},
		{"DoTx, repeated", calls(pay, "2", true), 1, 0, 0},
		{"DoTx, speculative", calls(&quick, "3", true), 0, 0, 1},
	} {
		before := w.Requests()
		must(t, c.call())
		is := w.Requests()
		gets, puts, transact := is["GetItem"]-before["GetItem"], is["PutItem"]-before["PutItem"], is["TransactWriteItems"]-before["TransactWriteItems"]
		if gets != c.gets || puts != c.puts || transact != c.transact {
			t.Errorf("%s: %d GetItem, %d PutItem, %d TransactWriteItems", c.name, gets, puts, transact)
		}
	}
}

// A table of the same name in another Region is another table.
func TestATransactionOfAnotherRegion(t *testing.T) {
	url := serve(t, new(dynamofake.Server))
	here := dynamostore.New(dial(url), nil)
	must(t, here.CreateTable(t.Context()))
	there := dynamostore.New(dial(url, func(o *dynamodb.Options) { o.Region = "us-east-1" }), nil)
	pay := &once.Operation[string]{Name: "pay"}
	_, err := once.InTx(t.Context(), here, there.Begin(), pay.For("1"), func(context.Context) (string, error) { return "paid", nil })
	if !errors.Is(err, once.ErrInvalid) {
		t.Errorf("InTx returned %v", err)
	}
}
