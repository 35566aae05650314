package grpconce_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// oddStore is a store whose methods a test can replace.
type oddStore struct {
	once.Store
	claim  func(context.Context, once.ClaimRequest) (once.Record, error)
	extend func() error
	settle func(once.Settlement) error
}

func (s *oddStore) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if s.claim != nil {
		return s.claim(ctx, r)
	}
	return s.Store.Claim(ctx, r)
}

func (s *oddStore) Extend(ctx context.Context, fence once.Fence, d time.Duration) error {
	if s.extend != nil {
		return s.extend()
	}
	return s.Store.Extend(ctx, fence, d)
}

func (s *oddStore) Settle(ctx context.Context, set once.Settlement) error {
	if s.settle != nil {
		if err := s.settle(set); err != nil {
			return err
		}
	}
	return s.Store.Settle(ctx, set)
}

func TestStoreNotReached(t *testing.T) {
	store := &oddStore{Store: memstore.New(nil), claim: func(context.Context, once.ClaimRequest) (once.Record, error) {
		return once.Record{}, errors.New("secret: connection refused")
	}}
	s := open(t, echo, guard(store, nil))
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Unavailable, grpconce.ReasonStoreUnavailable, true)
	if msg := status.Convert(err).Message(); msg != "the record of this call cannot be reached: repeat it with the same key" {
		t.Errorf("the message is %q", msg)
	}
	s.ran(t, 0)
}

func TestStoreClosed(t *testing.T) {
	store := memstore.New(nil)
	store.Close()
	s := open(t, echo, guard(store, nil))
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Unavailable, grpconce.ReasonStoreUnavailable, true)
	s.ran(t, 0)
}

func TestRecordDamaged(t *testing.T) {
	mem := memstore.New(nil)
	store := &oddStore{Store: mem, claim: func(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
		rec, err := mem.Claim(ctx, r)
		if len(rec.Outcome.Body) > 0 {
			rec.Outcome.Body[0] ^= 1
		}
		return rec, err
	}}
	s := open(t, echo, guard(store, nil))
	if _, _, err := s.call(t, "k", "tea"); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.DataLoss, grpconce.ReasonRecordDamaged, false)
	s.ran(t, 1)
}

func TestAnotherCodecsOutcomeIsNotKept(t *testing.T) {
	store := memstore.New(nil)
	other := &once.Operation[int]{Name: "grpc", OnUnknown: once.Park}
	if _, err := once.Do(t.Context(), store, other.For("k").In("acme"), func(context.Context, once.Key) (int, error) { return 1, nil }); err != nil {
		t.Fatal(err)
	}
	s := open(t, echo, guard(store, nil))
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.FailedPrecondition, grpconce.ReasonResponseNotKept, false)
	s.ran(t, 0)
}

func TestATypeThatIsNotLinkedIsNotKept(t *testing.T) {
	foreign, err := proto.Marshal(&anypb.Any{TypeUrl: "type.googleapis.com/other.Type"})
	if err != nil {
		t.Fatal(err)
	}
	store := memstore.New(nil)
	op := &once.Operation[once.Outcome]{Name: "grpc", OnUnknown: once.Park}
	out := once.Outcome{Body: foreign, ContentType: `application/protobuf; type="google.protobuf.Any"`}
	if _, err := once.Do(t.Context(), store, op.For("k").In("acme"), func(context.Context, once.Key) (once.Outcome, error) { return out, nil }); err != nil {
		t.Fatal(err)
	}
	s := open(t, echo, guard(store, nil))
	_, _, err = s.call(t, "k", "tea")
	refused(t, err, codes.FailedPrecondition, grpconce.ReasonResponseNotKept, false)
	s.ran(t, 0)
}

func TestAnAnswerThatCouldNotBeRecordedIsUnknown(t *testing.T) {
	store := &oddStore{Store: memstore.New(nil), settle: func(once.Settlement) error { return once.ErrInvalid }}
	s := open(t, echo, guard(store, nil))
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)
	s.ran(t, 1)
}
