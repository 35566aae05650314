package grpconce_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// A server that wants to be left alone for ever must not be called again at once.
func TestAWaitThatOverflows(t *testing.T) {
	for _, o := range []*grpconce.ClientOptions{quick(), {First: time.Millisecond, Within: math.MaxInt64}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), time.Hour)
			defer stop()
			l := &line{errs: []error{asking(codes.Unavailable, math.MaxInt64)}}
			if err := l.call(ctx, o); status.Code(err) != codes.Unavailable || len(l.at) != 1 {
				t.Errorf("Within %v: %v after %d attempts", o.Within, err, len(l.at))
			}
		})
	}
}

// The defaults of both ends fit: a repeat that met the first attempt still running comes back when its lease may be over.
func TestTheClientOutlastsALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{errs: []error{status.Error(codes.Unavailable, "lost"), asking(codes.Aborted, 30*time.Second)}}
		if err := l.call(t.Context(), nil); err != nil || len(l.at) != 3 {
			t.Errorf("%v after %d attempts", err, len(l.at))
		}
	})
}

// A refusal that is not on record is not final: whoever comes next may run the call, and succeed.
func TestARefusalThatCouldNotBeRecorded(t *testing.T) {
	refuse := func(context.Context, *text) (*text, error) { return nil, status.Error(codes.NotFound, "gone") }
	store := &trouble{Store: memstore.New(nil), settle: func(once.Settlement) error { return once.ErrInvalid }}
	_, _, err := open(t, refuse, guard(store, nil)).call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)

	long := func(context.Context, *text) (*text, error) {
		return nil, status.Error(codes.NotFound, string(make([]byte, 300)))
	}
	_, _, err = open(t, long, grpconce.ServerTx(small(), tenant, nil)).call(t, "k", "tea")
	refused(t, err, codes.Internal, grpconce.ReasonResponseTooLarge, false)
}

// A service that this one calls remembers another request under the key, or has forgotten its answer. It may have done the
// work: to record that as a refusal would be false.
func TestWhatAGuardedServiceBelowSaysOfItsKeyIsNoRefusal(t *testing.T) {
	below := open(t, echo, guard(memstore.New(nil), nil))
	if _, _, err := below.call(t, "k", "tea"); err != nil {
		t.Fatal(err)
	}
	s := open(t, func(context.Context, *text) (*text, error) {
		_, _, err := below.call(t, "k", "milk")
		return nil, err
	}, guard(memstore.New(nil), nil))
	if _, _, err := s.call(t, "k", "tea"); status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)
}

// Many servers copy what came in to what they send. Two callers that chose the same key must not meet below.
func TestAKeyThatOnlyCameInIsNotPassedOn(t *testing.T) {
	below := open(t, echo, guard(memstore.New(nil), nil))
	conn := dial(t, below.wire, grpconce.Client(nil))
	s := open(t, func(ctx context.Context, in *text) (*text, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		md = md.Copy()
		md.Delete("tenant") // below, this server is the caller
		out := new(text)
		return out, conn.Invoke(metadata.NewOutgoingContext(ctx, md), place, in, out)
	}, guard(memstore.New(nil), nil))
	for _, name := range []string{"ann", "bob"} {
		if _, _, err := s.callWith(t.Context(), place, "tea", grpconce.KeyMetadata, "1", "tenant", name); err != nil {
			t.Error(err)
		}
	}
	below.ran(t, 2)
}

// A handler that changes its request, to fill in a default or to add a fee, finds it unchanged when it is called again.
func TestAConflictDoesNotKeepWhatTheHandlerDidToItsRequest(t *testing.T) {
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

func TestTheTextOfARefusalNeedNotBeUTF8(t *testing.T) {
	s := open(t, func(context.Context, *text) (*text, error) { return nil, status.Error(codes.NotFound, "no \xff") },
		guard(memstore.New(nil), nil))
	s.call(t, "k", "tea")
	if _, replayed, err := s.call(t, "k", "tea"); status.Code(err) != codes.NotFound || !replayed {
		t.Errorf("replayed %t, %v", replayed, err)
	}
}

func TestARefusalInAnotherFormIsStillARefusal(t *testing.T) {
	store := memstore.New(nil)
	other := &once.Operation[int]{Name: "grpc", OnUnknown: once.Park}
	_, err := once.Do(t.Context(), store, other.For("k").In("acme"), func(context.Context, once.Key) (int, error) { return 1, once.ErrRejected })
	if !errors.Is(err, once.ErrRejected) {
		t.Fatal(err)
	}
	_, _, err = open(t, echo, guard(store, nil)).call(t, "k", "tea")
	refused(t, err, codes.FailedPrecondition, grpconce.ReasonResponseNotKept, false)
	if got := metadataOf(err)["outcome"]; got != "refused" {
		t.Errorf("the outcome is %q", got)
	}
}

// What a person has found out is replayed like any answer.
func TestAPersonSettlesACall(t *testing.T) {
	found, err := grpconce.Outcome(wrapperspb.String("found"), nil)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := grpconce.Outcome(nil, status.Error(codes.NotFound, "no such order"))
	if err != nil {
		t.Fatal(err)
	}
	for want, out := range map[codes.Code]once.Outcome{codes.OK: found, codes.NotFound: gone} {
		store := memstore.New(nil)
		s := open(t, func(context.Context, *text) (*text, error) { return nil, status.Error(codes.Internal, "boom") }, guard(store, nil))
		_, _, _ = s.call(t, "k", "tea")
		page, err := store.List(t.Context(), once.RecordQuery{})
		if err != nil || len(page.Records) != 1 || page.Records[0].Status != once.Parked {
			t.Fatalf("%+v, %v", page, err)
		}
		if err := once.MarkDone(t.Context(), store, page.Records[0], out, "the bank says so"); err != nil {
			t.Fatal(err)
		}
		if answer, replayed, err := s.call(t, "k", "tea"); status.Code(err) != want || !replayed || want == codes.OK && answer != "found" {
			t.Errorf("%q, %v, %v", answer, replayed, err)
		}
	}
}
