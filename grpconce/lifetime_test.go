package grpconce_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

func TestLeaseLostCancelsTheHandler(t *testing.T) {
	store := &oddStore{Store: memstore.New(nil), extend: func() error { return once.ErrLeaseLost },
		settle: func(once.Settlement) error { return once.ErrLeaseLost }}
	s := open(t, func(ctx context.Context, _ *text) (*text, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, guard(store, &grpconce.Options{Policy: once.Policy{Lease: 1500 * time.Millisecond}}))
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)
}

func TestTimeoutBoundsTheHandler(t *testing.T) {
	s := open(t, func(ctx context.Context, _ *text) (*text, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}, guard(memstore.New(nil), &grpconce.Options{Timeout: 20 * time.Millisecond}))
	if _, _, err := s.call(t, "k", "tea"); status.Code(err) != codes.DeadlineExceeded || grpconce.ReasonOf(err) != "" {
		t.Errorf("%v, want the handler's DeadlineExceeded", err)
	}
}

// The context of the handler has neither the cancellation nor the deadline of
// its client.
func TestAHandlerOutlivesItsClient(t *testing.T) {
	begun, finish, seen := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	left := make(chan struct{})
	outer := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		context.AfterFunc(ctx, func() { close(left) })
		return next(ctx, req)
	}
	first := true
	s := open(t, func(ctx context.Context, in *text) (*text, error) {
		close(begun)
		<-finish
		if _, limited := ctx.Deadline(); limited {
			seen <- errors.New("the deadline of the client")
		} else {
			seen <- ctx.Err()
		}
		return echo(ctx, in)
	}, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if first {
			first = false
			return outer(ctx, req, info, next)
		}
		return next(ctx, req)
	}, guard(memstore.New(nil), nil))
	ctx, hangUp := context.WithTimeout(t.Context(), time.Minute)
	answered := make(chan error, 1)
	go func() {
		_, _, err := s.callWith(ctx, place, "tea", grpconce.KeyMetadata, "k")
		answered <- err
	}()
	<-begun
	hangUp()
	if err := <-answered; status.Code(err) != codes.Canceled {
		t.Fatal(err)
	}
	<-left // the server knows
	close(finish)
	if err := <-seen; err != nil {
		t.Errorf("the handler saw %v", err)
	}
	if answer, replayed, err := s.call(t, "k", "tea"); answer != "placed tea" || !replayed || err != nil {
		t.Errorf("then: %q, replayed %t, %v", answer, replayed, err)
	}
	s.ran(t, 1)
}

// A client that leaves before the key is claimed leaves no record.
func TestAClientThatLeavesBeforeTheClaimLeavesNoRecord(t *testing.T) {
	mem, asked := memstore.New(nil), make(chan struct{})
	late := true
	store := &oddStore{Store: mem, claim: func(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
		if late {
			late = false
			close(asked)
			<-ctx.Done()
		}
		return mem.Claim(context.WithoutCancel(ctx), r)
	}}
	answered := make(chan error, 1)
	s := open(t, echo, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		out, err := next(ctx, req)
		answered <- err
		return out, err
	}, guard(store, nil))
	ctx, hangUp := context.WithCancel(t.Context())
	go func() {
		<-asked
		hangUp()
	}()
	s.callWith(ctx, place, "tea", grpconce.KeyMetadata, "k")
	if err := <-answered; status.Code(err) != codes.Canceled {
		t.Errorf("the server answered %v", err)
	}
	s.ran(t, 0)
	if answer, replayed, err := s.call(t, "k", "tea"); answer != "placed tea" || replayed || err != nil {
		t.Errorf("then: %q, replayed %t, %v", answer, replayed, err)
	}
}

// The end of a call races with its claim. In either order, no handler starts
// for a client that has left.
func TestACallThatIsOverIsNotRun(t *testing.T) {
	for range 500 {
		ctx, hangUp := context.WithCancel(metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpconce.KeyMetadata, "k")))
		hangUp()
		ran := false
		_, err := guard(memstore.New(nil), nil)(ctx, wrapperspb.String("tea"), &grpc.UnaryServerInfo{FullMethod: place},
			func(context.Context, any) (any, error) { ran = true; return nil, nil })
		if ran || status.Code(err) != codes.Canceled {
			t.Fatalf("ran %t, %v", ran, err)
		}
	}
}

// A client that waits for another's answer and leaves is not kept.
func TestAWaitingClientThatLeavesEndsItsWait(t *testing.T) {
	begun, finish, left := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	s := open(t, func(ctx context.Context, in *text) (*text, error) {
		close(begun)
		<-finish
		return echo(ctx, in)
	}, func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		out, err := next(ctx, req)
		left <- err
		return out, err
	}, guard(memstore.New(nil), &grpconce.Options{Policy: once.Policy{Wait: time.Hour}}))
	go s.callWith(t.Context(), place, "tea", grpconce.KeyMetadata, "k")
	<-begun
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	s.callWith(ctx, place, "tea", grpconce.KeyMetadata, "k")
	select {
	case err := <-left:
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Canceled {
			t.Error(err)
		}
	case <-time.After(testenv.Patience):
		t.Error("the server still waits for a client that has left")
	}
	close(finish)
	<-left
}

func TestPanicsPassOn(t *testing.T) {
	for _, kind := range []string{"Do", "DoTx"} {
		store := memstore.New(nil)
		inner := guard(store, nil)
		if kind == "DoTx" {
			inner = grpconce.ServerTx(store, tenant, nil)
		}
		s := open(t, func(context.Context, *text) (*text, error) { panic("spilled") },
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (out any, err error) {
				defer func() {
					if p := recover(); p != nil {
						err = status.Errorf(codes.Internal, "panic: %v", p)
					}
				}()
				return next(ctx, req)
			}, inner)
		if _, _, err := s.call(t, "k", "tea"); status.Convert(err).Message() != "panic: spilled" {
			t.Errorf("%s: %v", kind, err)
		}
		_, _, err := s.call(t, "k", "tea")
		if kind == "Do" {
			refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)
			s.ran(t, 1)
		} else {
			s.ran(t, 2) // rolled back, and free
		}
	}
}
