package grpconce_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/memstore"
)

type text = wrapperspb.StringValue

const (
	place = "/test.Shop/Place"
	clear = "/test.Shop/Clear" // as long as the other
)

// shop is a service with two methods that a test defines.
type shop struct {
	wire *bufconn.Listener
	conn *grpc.ClientConn
	runs atomic.Int64
	work func(context.Context, *text) (*text, error)
}

func (s *shop) handle(_ any, ctx context.Context, decode func(any) error, inner grpc.UnaryServerInterceptor, method string) (any, error) {
	in := new(text)
	if err := decode(in); err != nil {
		return nil, err
	}
	run := func(ctx context.Context, req any) (any, error) {
		s.runs.Add(1)
		out, err := s.work(ctx, req.(*text))
		if err != nil {
			return nil, err
		}
		return out, nil
	}
	if inner == nil {
		return run(ctx, in)
	}
	return inner(ctx, in, &grpc.UnaryServerInfo{Server: s, FullMethod: method}, run)
}

func (s *shop) method(name, full string) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, inner grpc.UnaryServerInterceptor) (any, error) {
		return s.handle(srv, ctx, decode, inner, full)
	}}
}

func echo(_ context.Context, in *text) (*text, error) {
	return wrapperspb.String("placed " + in.Value), nil
}

// open starts the shop with interceptors, the outermost first.
func open(t *testing.T, work func(context.Context, *text) (*text, error), inner ...grpc.UnaryServerInterceptor) *shop {
	t.Helper()
	s := &shop{work: work, wire: bufconn.Listen(1 << 20)}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(inner...), grpc.WaitForHandlers(true))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Shop", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{s.method("Place", place), s.method("Clear", clear)}}, s)
	go server.Serve(s.wire)
	t.Cleanup(server.Stop)
	s.conn = dial(t, s.wire)
	return s
}

func dial(t *testing.T, wire *bufconn.Listener, inner ...grpc.UnaryClientInterceptor) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///shop", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return wire.DialContext(ctx) }),
		grpc.WithChainUnaryInterceptor(inner...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// call places an order under a key.
func (s *shop) call(t *testing.T, key, order string) (answer string, replayed bool, err error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), testenv.Patience)
	defer stop()
	return s.callWith(ctx, place, order, grpconce.KeyMetadata, key)
}

func (s *shop) callWith(ctx context.Context, method, order string, md ...string) (answer string, replayed bool, err error) {
	var header metadata.MD
	var out text
	ctx = metadata.AppendToOutgoingContext(ctx, md...)
	err = s.conn.Invoke(ctx, method, wrapperspb.String(order), &out, grpc.Header(&header))
	return out.Value, grpconce.Replayed(header), err
}

func (s *shop) ran(t *testing.T, want int64) {
	t.Helper()
	if got := s.runs.Load(); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// tenant takes the caller from the metadata.
func tenant(ctx context.Context, _ *grpc.UnaryServerInfo) (string, error) {
	if values := metadata.ValueFromIncomingContext(ctx, "tenant"); len(values) > 0 {
		if values[0] == "broken" {
			return "acme", errors.New("no session")
		}
		return values[0], nil
	}
	return "acme", nil
}

func guard(s once.Store, o *grpconce.Options) grpc.UnaryServerInterceptor {
	return grpconce.Server(s, tenant, o)
}

func small() *memstore.Store {
	return memstore.New(&memstore.Options{Options: once.Options{MaxOutcome: 200}})
}

// refused checks an answer that the interceptor gave by itself.
func refused(t *testing.T, err error, code codes.Code, reason grpconce.Reason, retry bool) {
	t.Helper()
	if status.Code(err) != code || grpconce.ReasonOf(err) != reason {
		t.Errorf("got %v with the reason %q, want %v with %q", err, grpconce.ReasonOf(err), code, reason)
	}
	if wait := retryOf(err); wait > 0 != retry {
		t.Errorf("RetryInfo asks for %v, want any: %t", wait, retry)
	}
}

func retryOf(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration()
		}
	}
	return 0
}

func metadataOf(err error) map[string]string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Metadata
		}
	}
	return nil
}
