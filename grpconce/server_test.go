package grpconce_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

func TestTheFirstAnswerIsReplayed(t *testing.T) {
	s := open(t, echo, guard(memstore.New(nil), nil))
	first, replayed, err := s.call(t, "k", "tea")
	if first != "placed tea" || replayed || err != nil {
		t.Fatalf("first: %q, replayed %t, %v", first, replayed, err)
	}
	second, replayed, err := s.call(t, "k", "tea")
	if second != first || !replayed || err != nil {
		t.Fatalf("second: %q, replayed %t, %v", second, replayed, err)
	}
	s.ran(t, 1)
}

func TestHeadersOfTheHandlerReachTheFirstCallOnly(t *testing.T) {
	s := open(t, func(ctx context.Context, in *text) (*text, error) {
		if err := grpc.SetHeader(ctx, metadata.Pairs("location", "shelf")); err != nil {
			t.Error(err)
		}
		return echo(ctx, in)
	}, guard(memstore.New(nil), nil))
	for _, want := range []int{1, 0} {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(t.Context(), grpconce.KeyMetadata, "k")
		if err := s.conn.Invoke(ctx, place, wrapperspb.String("tea"), new(text), grpc.Header(&header)); err != nil {
			t.Error(err)
		}
		if got := len(header.Get("location")); got != want {
			t.Errorf("%d headers of the handler, want %d", got, want)
		}
	}
}

func TestWhatIsRecordedOfEachCode(t *testing.T) {
	recorded := map[codes.Code]bool{codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true,
		codes.PermissionDenied: true, codes.FailedPrecondition: true, codes.OutOfRange: true, codes.Unimplemented: true}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			detailed, err := status.New(code, "no tea").WithDetails(&errdetails.ResourceInfo{ResourceName: "tea"})
			if err != nil {
				t.Fatal(err)
			}
			s := open(t, func(context.Context, *text) (*text, error) { return nil, detailed.Err() }, guard(memstore.New(nil), nil))
			_, _, first := s.call(t, "k", "tea")
			if !proto.Equal(status.Convert(first).Proto(), detailed.Proto()) {
				t.Errorf("first: %v, want the handler's status", first)
			}
			_, replayed, second := s.call(t, "k", "tea")
			if recorded[code] {
				if !replayed || !proto.Equal(status.Convert(second).Proto(), detailed.Proto()) {
					t.Errorf("second: %v, replayed %t, want the handler's status again", second, replayed)
				}
			} else {
				refused(t, second, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)
			}
			s.ran(t, 1)
		})
	}
}

func TestAHandlerCanOverrideTheRuleForItsError(t *testing.T) {
	gone := status.Error(codes.NotFound, "gone")
	tests := []struct {
		name string
		err  error
		o    *grpconce.Options
		code codes.Code // of the first answer
		runs int64      // of two calls
		then codes.Code // of the second answer
	}{
		{"NotDone frees the key", once.NotDone(gone), nil, codes.NotFound, 2, codes.NotFound},
		{"NotDone beats rejected", once.NotDone(errors.Join(once.ErrRejected, gone)), nil, codes.NotFound, 2, codes.NotFound},
		{"rejected is recorded", errors.Join(once.ErrRejected, status.Error(codes.Internal, "no")), nil, codes.Internal, 1, codes.Internal},
		{"rejected without a status", once.ErrRejected, nil, codes.FailedPrecondition, 1, codes.FailedPrecondition},
		{"wrapped status", fmt.Errorf("secret: %w", gone), nil, codes.NotFound, 1, codes.NotFound},
		{"plain error", errors.New("plain"), nil, codes.Unknown, 1, codes.Aborted},
		{"context error", context.DeadlineExceeded, nil, codes.DeadlineExceeded, 1, codes.Aborted},
		{"conflict elsewhere", errors.Join(once.ErrConflict, status.Error(codes.Unavailable, "busy")), nil, codes.Unavailable, 1, codes.Aborted},
		{"policy releases", gone, decide(grpconce.Release), codes.NotFound, 2, codes.NotFound},
		{"policy records", errors.New("plain"), decide(grpconce.Record), codes.Unknown, 1, codes.Unknown},
		{"policy is not asked about rejected", errors.Join(once.ErrRejected, gone), decide(grpconce.Release), codes.NotFound, 1, codes.NotFound},
		{"policy does not know", gone, decide(grpconce.Unknown), codes.NotFound, 1, codes.Aborted},
		{"policy leaves it", gone, decide(grpconce.ByCode), codes.NotFound, 1, codes.NotFound},
		{"resend", errors.New("plain"), &grpconce.Options{OnUnknown: once.Resend}, codes.Unknown, 2, codes.Unknown},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, func(context.Context, *text) (*text, error) { return nil, test.err }, guard(memstore.New(nil), test.o))
			_, _, first := s.call(t, "k", "tea")
			_, replayed, second := s.call(t, "k", "tea")
			if status.Code(first) != test.code || status.Code(second) != test.then {
				t.Errorf("answers %v and %v, want %v and %v", first, second, test.code, test.then)
			}
			if replayed != (test.runs == 1 && test.then == test.code) {
				t.Errorf("replayed is %t", replayed)
			}
			if strings.Contains(first.Error()+second.Error(), "secret") {
				t.Error("text around the status has left the server")
			}
			s.ran(t, test.runs)
		})
	}
}

func decide(d grpconce.Decision) *grpconce.Options {
	return &grpconce.Options{Decide: func(string, *status.Status) grpconce.Decision { return d }}
}

func TestKeysAreChecked(t *testing.T) {
	o := &grpconce.Options{Required: func(method string) bool { return method == place }}
	s := open(t, echo, guard(memstore.New(nil), o))
	tests := []struct {
		name   string
		md     []string
		reason grpconce.Reason
	}{
		{"missing", nil, grpconce.ReasonKeyMissing},
		{"empty", []string{grpconce.KeyMetadata, ""}, grpconce.ReasonKeyInvalid},
		{"256 bytes", []string{grpconce.KeyMetadata, strings.Repeat("k", 256)}, grpconce.ReasonKeyInvalid},
		{"sent twice", []string{grpconce.KeyMetadata, "k", grpconce.KeyMetadata, "k"}, grpconce.ReasonKeyInvalid},
	}
	for _, test := range tests {
		_, _, err := s.callWith(t.Context(), place, "tea", test.md...)
		t.Log(test.name)
		refused(t, err, codes.InvalidArgument, test.reason, false)
	}
	s.ran(t, 0)
	if _, _, err := s.call(t, strings.Repeat("k", 255), "tea"); err != nil {
		t.Error(err)
	}
	for range 2 { // not required: each is a call of its own
		if _, replayed, err := s.callWith(t.Context(), clear, "tea"); replayed || err != nil {
			t.Error(replayed, err)
		}
	}
	s.ran(t, 3)
}

// gRPC does not carry these; other transports of metadata do.
func TestKeysThatTheWireRefuses(t *testing.T) {
	for _, key := range []string{"a\nb", "a\x7f", "é", " a", "a ", "a\x00"} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpconce.KeyMetadata, key))
		_, err := direct(ctx, memstore.New(nil), nil, wrapperspb.String("tea"), nil)
		refused(t, err, codes.InvalidArgument, grpconce.ReasonKeyInvalid, false)
	}
}

// direct calls the interceptor as a server would.
func direct(ctx context.Context, s once.Store, o *grpconce.Options, req any, response any) (any, error) {
	return guard(s, o)(ctx, req, &grpc.UnaryServerInfo{FullMethod: place}, func(context.Context, any) (any, error) { return response, nil })
}

func TestTheCallerIsMandatory(t *testing.T) {
	s := open(t, echo, guard(memstore.New(nil), nil))
	for _, name := range []string{"", "broken", strings.Repeat("t", 256)} {
		_, _, err := s.callWith(t.Context(), place, "tea", grpconce.KeyMetadata, "k", "tenant", name)
		refused(t, err, codes.Unauthenticated, grpconce.ReasonCallerUnknown, false)
	}
	s.ran(t, 0)
	for _, name := range []string{"ann", "bob"} {
		if _, replayed, err := s.callWith(t.Context(), place, "tea", grpconce.KeyMetadata, "k", "tenant", name); replayed || err != nil {
			t.Errorf("%s met another's key: replayed %t, %v", name, replayed, err)
		}
	}
	s.ran(t, 2)
}

func TestSameKeyOtherRequest(t *testing.T) {
	s := open(t, echo, guard(memstore.New(nil), nil))
	if _, _, err := s.call(t, "k", "tea"); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.call(t, "k", "milk")
	refused(t, err, codes.FailedPrecondition, grpconce.ReasonMismatch, false)
	_, _, err = s.callWith(t.Context(), clear, "tea", grpconce.KeyMetadata, "k")
	refused(t, err, codes.FailedPrecondition, grpconce.ReasonMismatch, false)
	s.ran(t, 1)
}

// A map has no order of its own.
func TestRequestsAreComparedDeterministically(t *testing.T) {
	ctx, store := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpconce.KeyMetadata, "k")), memstore.New(nil)
	for range 20 {
		order, err := structpb.NewStruct(map[string]any{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6})
		if err == nil {
			_, err = direct(ctx, store, nil, order, wrapperspb.String("placed"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestFingerprintOfAChosenPart(t *testing.T) {
	o := &grpconce.Options{Fingerprint: func(_ string, req any) ([]byte, error) {
		part, _, found := strings.Cut(req.(*text).Value, ";")
		if !found {
			return nil, errors.New("no part to compare")
		}
		return []byte(part), nil
	}}
	s := open(t, echo, guard(memstore.New(nil), o))
	for _, order := range []string{"tea;1", "tea;2"} {
		if answer, _, err := s.call(t, "k", order); answer != "placed tea;1" || err != nil {
			t.Error(answer, err)
		}
	}
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Internal, grpconce.ReasonMisconfigured, false)
	s.ran(t, 1)
}

func TestStillRunning(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	s := open(t, func(ctx context.Context, in *text) (*text, error) {
		close(begun)
		<-finish
		return echo(ctx, in)
	}, guard(memstore.New(nil), &grpconce.Options{Policy: once.Policy{Wait: once.NoWait, Lease: time.Minute}}))
	done := make(chan error, 1)
	go func() {
		_, _, err := s.call(t, "k", "tea")
		done <- err
	}()
	<-begun
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonInProgress, true)
	if wait := retryOf(err); wait < 30*time.Second || wait > time.Minute {
		t.Errorf("RetryInfo asks for %v, want what is left of a minute", wait)
	}
	close(finish)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.ran(t, 1)
}

func TestExpired(t *testing.T) {
	o := &grpconce.Options{Policy: once.Policy{KeepOutcome: time.Millisecond, KeepKey: time.Hour}}
	s := open(t, echo, guard(memstore.New(nil), o))
	var err error
	for end := time.Now().Add(testenv.Patience); err == nil && time.Now().Before(end); {
		_, _, err = s.call(t, "k", "tea")
	}
	refused(t, err, codes.FailedPrecondition, grpconce.ReasonExpired, false)
	s.ran(t, 1)
}

func TestParkedSaysSo(t *testing.T) {
	s := open(t, func(context.Context, *text) (*text, error) { return nil, errors.New("plain") }, guard(memstore.New(nil), nil))
	s.call(t, "k", "tea")
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)
	if metadataOf(err)["parked"] != "true" || retryOf(err) < time.Minute {
		t.Errorf("parked: metadata %v, RetryInfo %v", metadataOf(err), retryOf(err))
	}
}

func TestLookupAnswers(t *testing.T) {
	found := errors.New("no answer yet")
	var response proto.Message
	var happened bool
	o := &grpconce.Options{Lookup: func(context.Context, once.Key) (proto.Message, bool, error) { return response, happened, found }}
	s := open(t, func(context.Context, *text) (*text, error) { return nil, errors.New("plain") }, guard(memstore.New(nil), o))
	s.call(t, "k", "tea")
	s.call(t, "refused", "tea")
	_, _, err := s.call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)
	if metadataOf(err)["parked"] != "" {
		t.Error("what can be asked about is not parked")
	}
	response, happened, found = wrapperspb.String("found"), true, nil
	if answer, replayed, err := s.call(t, "k", "tea"); answer != "found" || !replayed || err != nil {
		t.Error(answer, replayed, err)
	}
	response, found = nil, errors.Join(once.ErrRejected, status.Error(codes.OutOfRange, "refused there"))
	if _, replayed, err := s.call(t, "refused", "tea"); status.Code(err) != codes.OutOfRange || !replayed {
		t.Error(replayed, err)
	}
	s.ran(t, 2)
}

func TestAskOutOfBand(t *testing.T) {
	store, o := memstore.New(nil), &grpconce.Options{}
	key := once.Key{Scope: "acme", Operation: "grpc", ID: "k"}
	if _, err := store.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: key, Owner: [16]byte{1}}, Lease: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	rec, err := store.Get(t.Context(), key)
	if err == nil {
		rec, err = o.Ask(t.Context(), store, rec)
	}
	if err != nil || rec.Status != once.Parked {
		t.Errorf("%v, %v: want it parked", rec.Status, err)
	}
}

func TestResponseOverTheLimit(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		long := strings.Repeat("x", 300)
		s := open(t, func(context.Context, *text) (*text, error) {
			if refuse {
				return nil, status.Error(codes.NotFound, long)
			}
			return wrapperspb.String(long), nil
		}, guard(small(), nil))
		if answer, _, err := s.call(t, "k", "tea"); answer != long && status.Convert(err).Message() != long {
			t.Errorf("the first call gets its answer, not %q, %v", answer, err)
		}
		_, _, err := s.call(t, "k", "tea")
		refused(t, err, codes.FailedPrecondition, grpconce.ReasonResponseNotKept, false)
		if want := map[bool]string{false: "done", true: "refused"}[refuse]; metadataOf(err)["outcome"] != want {
			t.Errorf("the outcome is %q, want %q", metadataOf(err)["outcome"], want)
		}
		s.ran(t, 1)
	}
}

func TestNotProtocolBuffers(t *testing.T) {
	ctx, store := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpconce.KeyMetadata, "k")), memstore.New(nil)
	_, err := direct(ctx, store, nil, 1, nil)
	refused(t, err, codes.Internal, grpconce.ReasonMisconfigured, false)
	if got, err := direct(ctx, store, nil, wrapperspb.String("tea"), 1); got != 1 || err != nil {
		t.Errorf("the first call gets its answer, not %v, %v", got, err)
	}
	_, err = direct(ctx, store, nil, wrapperspb.String("tea"), 1)
	refused(t, err, codes.FailedPrecondition, grpconce.ReasonResponseNotKept, false)
}

func TestProgramsThatAreWrongPanic(t *testing.T) {
	store := memstore.New(nil)
	for name, build := range map[string]func(){
		"no caller":     func() { grpconce.Server(store, nil, nil) },
		"no store":      func() { grpconce.Server(nil, tenant, nil) },
		"no store, tx":  func() { grpconce.ServerTx[*memstore.Tx](nil, tenant, nil) },
		"bad policy":    func() { guard(store, &grpconce.Options{Policy: once.Policy{Wait: -2}}) },
		"bad name":      func() { guard(store, &grpconce.Options{Operation: "a/b"}) },
		"bad timeout":   func() { guard(store, &grpconce.Options{Timeout: -1}) },
		"bad client":    func() { grpconce.Client(&grpconce.ClientOptions{Attempts: -1}) },
		"bad client, 2": func() { grpconce.Client(&grpconce.ClientOptions{First: -1}) },
	} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.HasPrefix(text, "grpconce: ") {
					t.Errorf("%s: %s", name, text)
				}
			}()
			build()
		}()
	}
}

func TestSixtyFourAtOnce(t *testing.T) {
	s := open(t, echo, guard(memstore.New(nil), nil))
	var all sync.WaitGroup
	var replays, mine int
	var mu sync.Mutex
	for range 64 {
		all.Go(func() {
			answer, replayed, err := s.call(t, "k", "tea")
			if answer != "placed tea" || err != nil {
				t.Error(answer, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if replayed {
				replays++
			} else {
				mine++
			}
		})
	}
	all.Wait()
	if mine != 1 || replays != 63 {
		t.Errorf("%d ran and %d were replayed", mine, replays)
	}
	s.ran(t, 1)
}

// A refusal that is not recorded is not final. The next call may run and
// succeed.
func TestARefusalThatCouldNotBeRecordedIsNotFinal(t *testing.T) {
	refuse := func(context.Context, *text) (*text, error) { return nil, status.Error(codes.NotFound, "gone") }
	store := &oddStore{Store: memstore.New(nil), settle: func(once.Settlement) error { return once.ErrInvalid }}
	_, _, err := open(t, refuse, guard(store, nil)).call(t, "k", "tea")
	refused(t, err, codes.Aborted, grpconce.ReasonOutcomeUnknown, true)

	long := func(context.Context, *text) (*text, error) {
		return nil, status.Error(codes.NotFound, string(make([]byte, 300)))
	}
	_, _, err = open(t, long, grpconce.ServerTx(small(), tenant, nil)).call(t, "k", "tea")
	refused(t, err, codes.Internal, grpconce.ReasonResponseTooLarge, false)
}

// A service that the handler calls has another request under the key, or has
// forgotten its response. It may have done the work, so a recorded refusal
// would be wrong.
func TestAReasonOfAnotherGuardedServiceIsNotRecorded(t *testing.T) {
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

// A response that a person has recorded is replayed like any other.
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
