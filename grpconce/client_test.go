package grpconce_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// line is a connection that fails as a test tells it, and records the keys of
// its calls.
type line struct {
	errs []error // of the attempts in turn; after them all is well
	keys []string
	at   []time.Time
}

func (l *line) invoke(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	l.keys = append(l.keys, md.Get(grpconce.KeyMetadata)...)
	l.at = append(l.at, time.Now())
	if n := len(l.at); n <= len(l.errs) {
		return l.errs[n-1]
	}
	return nil
}

func (l *line) call(ctx context.Context, o *grpconce.ClientOptions) error {
	return grpconce.Client(o)(ctx, place, nil, nil, nil, l.invoke)
}

func quick() *grpconce.ClientOptions { return &grpconce.ClientOptions{First: time.Millisecond} }

func asking(code codes.Code, wait time.Duration) error {
	s, err := status.New(code, "later").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	return errors.Join(err, s.Err())
}

func TestWhatIsRepeated(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for asked, err := range map[bool]error{false: status.Error(code, ""), true: asking(code, time.Millisecond)} {
			want := 1
			if code == codes.Unavailable || asked && (code == codes.Aborted || code == codes.ResourceExhausted) {
				want = 2
			}
			l := &line{errs: []error{err}}
			got := l.call(t.Context(), quick())
			if len(l.at) != want || (got == nil) != (want == 2) {
				t.Errorf("%v, RetryInfo %t: %d attempts and %v, want %d", code, asked, len(l.at), got, want)
			}
		}
	}
}

func TestOneKeyForAllAttempts(t *testing.T) {
	lost := status.Error(codes.Unavailable, "lost")
	l := &line{errs: slices.Repeat([]error{lost}, 9)}
	if err := l.call(t.Context(), quick()); !errors.Is(err, lost) {
		t.Error(err)
	}
	if len(l.keys) != 5 || len(slices.Compact(slices.Clone(l.keys))) != 1 || len(l.keys[0]) != 36 {
		t.Errorf("the keys of 5 attempts are %q", l.keys)
	}
	next := &line{}
	if err := next.call(t.Context(), quick()); err != nil || next.keys[0] == l.keys[0] {
		t.Errorf("another call has the key %q, too: %v", next.keys, err)
	}
}

func TestWhereTheKeyComesFrom(t *testing.T) {
	work := (&once.Operation[string]{Name: "pay", OnUnknown: once.Park}).For("1")
	_, err := once.Do(t.Context(), memstore.New(nil), work, func(ctx context.Context, key once.Key) (string, error) {
		sent := metadata.AppendToOutgoingContext(ctx, grpconce.KeyMetadata, "sent", "other", "kept")
		for want, ctx := range map[string]context.Context{
			key.String(): ctx,
			"sent":       sent,
			"given":      grpconce.WithKey(sent, "given"),
		} {
			l := &line{}
			if err := l.call(ctx, nil); err != nil || !slices.Equal(l.keys, []string{want}) {
				t.Errorf("the keys are %q, want %q: %v", l.keys, want, err)
			}
		}
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l := &line{}
	err = l.call(grpconce.WithKey(t.Context(), ""), nil)
	refused(t, err, codes.InvalidArgument, grpconce.ReasonKeyInvalid, false)
	if len(l.at) != 0 {
		t.Error("a malformed key was sent")
	}
}

func TestMethodsLeftOut(t *testing.T) {
	l := &line{errs: []error{status.Error(codes.Unavailable, "lost")}}
	err := l.call(t.Context(), &grpconce.ClientOptions{Methods: func(method string) bool { return method != place }})
	if status.Code(err) != codes.Unavailable || len(l.at) != 1 || len(l.keys) != 0 {
		t.Errorf("%v after %d attempts with %q", err, len(l.at), l.keys)
	}
}

func TestTheServersWaitIsKept(t *testing.T) {
	const wait = 80 * time.Millisecond
	l := &line{errs: []error{asking(codes.Aborted, wait)}}
	if err := l.call(t.Context(), quick()); err != nil {
		t.Fatal(err)
	}
	if got := l.at[1].Sub(l.at[0]); got < wait {
		t.Errorf("repeated after %v, the server asked for %v", got, wait)
	}
}

func TestNoRepeatThatCannotBeInTime(t *testing.T) {
	short, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	within := quick()
	within.Within = 30 * time.Second
	for name, call := range map[string]func(*line) error{
		"deadline of the call": func(l *line) error { return l.call(short, &grpconce.ClientOptions{Within: time.Hour}) },
		"Within":               func(l *line) error { return l.call(t.Context(), within) },
	} {
		l := &line{errs: []error{asking(codes.Aborted, time.Minute)}}
		begun := time.Now()
		if err := call(l); status.Code(err) != codes.Aborted || len(l.at) != 1 || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: %v after %d attempts and %v", name, err, len(l.at), time.Since(begun))
		}
	}
}

func TestACancelledCallIsNotRepeated(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	l := &line{errs: []error{asking(codes.Unavailable, time.Hour)}}
	go stop()
	if err := l.call(ctx, &grpconce.ClientOptions{Within: 2 * time.Hour}); status.Code(err) != codes.Unavailable || len(l.at) != 1 {
		t.Errorf("%v after %d attempts", err, len(l.at))
	}
}

// The answer of the first attempt is lost on its way; the second attempt gets it.
func TestBothEnds(t *testing.T) {
	s := open(t, echo, guard(memstore.New(nil), nil))
	lost := false
	lose := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if !lost && err == nil {
			lost = true
			return status.Error(codes.Unavailable, "the answer was lost")
		}
		return err
	}
	conn := dial(t, s.wire, grpconce.Client(quick()), lose)
	var out text
	var header metadata.MD
	err := conn.Invoke(t.Context(), place, wrapperspb.String("tea"), &out, grpc.Header(&header))
	if err != nil || out.Value != "placed tea" || !grpconce.Replayed(header) {
		t.Errorf("%q, replayed %t, %v", out.Value, grpconce.Replayed(header), err)
	}
	s.ran(t, 1)
}

// A server that wants to be left alone for ever must not be called again at once.
func TestADelayThatOverflowsIsNotWaitedFor(t *testing.T) {
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

// The defaults of client and server fit: a retry that finds the first attempt
// running is repeated after its lease may have ended.
func TestTheClientRetriesLongerThanALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &line{errs: []error{status.Error(codes.Unavailable, "lost"), asking(codes.Aborted, 30*time.Second)}}
		if err := l.call(t.Context(), nil); err != nil || len(l.at) != 3 {
			t.Errorf("%v after %d attempts", err, len(l.at))
		}
	})
}

// Many servers copy incoming metadata to their outgoing calls. Two callers with
// the same key must not collide at the next server.
func TestTheKeyOfTheIncomingCallIsNotPassedOn(t *testing.T) {
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

// TestAnInterceptorOutsideThatSendsACallAgainKeepsItsKey: a call that has failed
// and is sent again has the same key. Anything else is another call.
func TestAnInterceptorOutsideThatSendsACallAgainKeepsItsKey(t *testing.T) {
	for name, test := range map[string]struct {
		first  error
		second func(*text) *text
		method string
		ctx    func(context.Context) context.Context
		same   bool
	}{
		"lost":                           {first: status.Error(codes.Unavailable, ""), same: true},
		"timed out":                      {first: status.Error(codes.DeadlineExceeded, ""), same: true},
		"not a status":                   {first: errors.New("x"), same: true},
		"refused":                        {first: status.Error(codes.InvalidArgument, "")},
		"done":                           {},
		"another message":                {first: status.Error(codes.Unavailable, ""), second: func(*text) *text { return wrapperspb.String("1") }},
		"other content":                  {first: status.Error(codes.Unavailable, ""), second: func(m *text) *text { m.Value = "2"; return m }},
		"another method":                 {first: status.Error(codes.Unavailable, ""), method: clear},
		"another message, with one name": {first: status.Error(codes.Unavailable, ""), second: func(*text) *text { return wrapperspb.String("1") }, ctx: func(ctx context.Context) context.Context { return grpconce.WithKey(ctx, "k") }, same: true},
	} {
		t.Run(name, func(t *testing.T) {
			l, client, ctx := &line{errs: []error{test.first}}, grpconce.Client(&grpconce.ClientOptions{Attempts: 1}), t.Context()
			if test.ctx != nil {
				ctx = test.ctx(ctx)
			}
			call := func(method string, m *text) {
				if err := client(ctx, method, m, nil, nil, l.invoke); !errors.Is(err, test.first) && err != nil {
					t.Error(err)
				}
			}
			m, method := wrapperspb.String("1"), cmp.Or(test.method, place)
			call(place, m)
			if test.second != nil {
				m = test.second(m)
			}
			call(method, m)
			call(method, m)
			if (l.keys[0] == l.keys[1]) != test.same || test.ctx == nil && l.keys[1] == l.keys[2] {
				t.Errorf("keys: %q", l.keys)
			}
		})
	}
}
