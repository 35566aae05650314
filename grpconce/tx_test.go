package grpconce_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/internal/faketime"
	"github.com/effectively-once/once/store/memstore"
)

func openTx(t *testing.T, store *memstore.Store, work func(context.Context, *memstore.Tx) (*text, error)) *shop {
	t.Helper()
	return open(t, func(ctx context.Context, _ *text) (*text, error) {
		tx, ok := grpconce.TxFrom[*memstore.Tx](ctx)
		if !ok {
			return nil, status.Error(codes.Internal, "no transaction")
		}
		return work(ctx, tx)
	}, grpconce.ServerTx(store, tenant, nil))
}

func TestRowsAndResponseAreOneCommit(t *testing.T) {
	store := memstore.New(nil)
	var s *shop
	s = openTx(t, store, func(_ context.Context, tx *memstore.Tx) (*text, error) {
		tx.Set("order", fmt.Sprint(s.runs.Load()))
		if _, ok := store.Value("order"); ok {
			t.Error("the row is there before the commit")
		}
		return wrapperspb.String("placed"), nil
	})
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if answer, _, err := s.call(t, "k", "tea"); answer != "placed" || err != nil {
				t.Error(answer, err)
			}
		})
	}
	all.Wait()
	if row, _ := store.Value("order"); row != "1" {
		t.Errorf("the row is %q", row)
	}
	if _, replayed, err := s.call(t, "k", "tea"); !replayed || err != nil {
		t.Error(replayed, err)
	}
	s.ran(t, 1)
}

func TestWhatRollsBack(t *testing.T) {
	tests := []struct {
		name string
		err  error
		runs int64 // of two calls
	}{
		{"recorded refusal", status.Error(codes.NotFound, "gone"), 1},
		{"rejected", errors.Join(once.ErrRejected, status.Error(codes.Internal, "no")), 1},
		{"other status", status.Error(codes.Unavailable, "later"), 2},
		{"plain error", errors.New("plain"), 2},
		{"nothing happened", once.NotDone(status.Error(codes.NotFound, "gone")), 2},
		{"nothing happened, rejected", once.NotDone(errors.Join(once.ErrRejected, status.Error(codes.NotFound, "gone"))), 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store := memstore.New(nil)
			s := openTx(t, store, func(_ context.Context, tx *memstore.Tx) (*text, error) {
				tx.Set("order", "tea")
				return nil, test.err
			})
			_, _, first := s.call(t, "k", "tea")
			_, replayed, second := s.call(t, "k", "tea")
			if status.Code(first) == codes.OK || first.Error() != second.Error() {
				t.Errorf("first %v, second %v", first, second)
			}
			if replayed != (test.runs == 1) {
				t.Errorf("replayed is %t", replayed)
			}
			if _, ok := store.Value("order"); ok {
				t.Error("the row is there")
			}
			s.ran(t, test.runs)
		})
	}
}

func TestAConflictIsTriedAgain(t *testing.T) {
	faketime.Test(t, func(t *testing.T) {
		var s *shop
		always := false
		s = openTx(t, memstore.New(nil), func(context.Context, *memstore.Tx) (*text, error) {
			if always || s.runs.Load() < 3 {
				return nil, fmt.Errorf("insert: %w", once.ErrConflict)
			}
			return wrapperspb.String("placed"), nil
		})
		if answer, _, err := s.call(t, "k", "tea"); answer != "placed" || err != nil {
			t.Error(answer, err)
		}
		s.ran(t, 3)
		always = true
		_, _, err := s.call(t, "k2", "tea")
		refused(t, err, codes.Aborted, grpconce.ReasonConflict, true)
	})
}

func TestResponseOverTheLimitRollsBack(t *testing.T) {
	store := small()
	s := openTx(t, store, func(_ context.Context, tx *memstore.Tx) (*text, error) {
		tx.Set("order", "tea")
		return wrapperspb.String(strings.Repeat("x", 300)), nil
	})
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Internal, grpconce.ReasonResponseTooLarge, false)
	if _, ok := store.Value("order"); ok {
		t.Error("the row is there")
	}
}

func TestACallWithoutAKeyHasNoTransaction(t *testing.T) {
	s := openTx(t, memstore.New(nil), nil)
	if _, _, err := s.callWith(t.Context(), place, "tea"); status.Convert(err).Message() != "no transaction" {
		t.Error(err)
	}
}

func TestOutsideWorkInATransactionIsRefused(t *testing.T) {
	store := memstore.New(nil)
	mail := &once.Operation[string]{Name: "mail", OnUnknown: once.Park}
	s := openTx(t, store, func(ctx context.Context, _ *memstore.Tx) (*text, error) {
		_, err := once.Do(ctx, store, mail.For("1"), func(context.Context, once.Key) (string, error) { return "", nil })
		if !errors.Is(err, once.ErrInTx) {
			t.Errorf("Do in the transaction: %v", err)
		}
		return wrapperspb.String("placed"), nil
	})
	if _, _, err := s.call(t, "k", "tea"); err != nil {
		t.Error(err)
	}
}

// A handler that changes its request, to set a default or to add a fee, gets it
// unchanged when it is called again.
func TestARetryAfterAConflictGetsTheOriginalRequest(t *testing.T) {
	first := true
	s := open(t, func(_ context.Context, in *text) (*text, error) {
		in.Value += " and a fee"
		if first {
			first = false
			return nil, once.ErrConflict
		}
		return wrapperspb.String(in.Value), nil
	}, grpconce.ServerTx(memstore.New(nil), tenant, nil))
	if answer, _, err := s.call(t, "k", "tea"); answer != "tea and a fee" || err != nil {
		t.Errorf("%q, %v", answer, err)
	}
}
