package grpconce_test

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// TestStreamsThatNeedAKeyAreRefused opens streams of each kind, over a
// connection.
func TestStreamsThatNeedAKeyAreRefused(t *testing.T) {
	const watch = "/test.Shop/Watch"
	required := &grpconce.Options{Required: func(method string) bool { return method == watch }}
	for name, test := range map[string]struct {
		o       *grpconce.Options
		key     []string
		refused bool
	}{
		"no key":              {o: nil},
		"no key, not needed":  {o: &grpconce.Options{Required: func(method string) bool { return method == place }}},
		"no key, needed":      {o: required, refused: true},
		"a key":               {o: nil, key: []string{grpconce.KeyMetadata, "k"}, refused: true},
		"a key that is empty": {o: nil, key: []string{grpconce.KeyMetadata, ""}, refused: true},
		"a key, needed":       {o: required, key: []string{grpconce.KeyMetadata, "k"}, refused: true},
	} {
		for kind, desc := range map[string]grpc.StreamDesc{"server": {ServerStreams: true}, "client": {ClientStreams: true}, "both": {ServerStreams: true, ClientStreams: true}} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				var ran atomic.Bool
				desc.StreamName = "Watch"
				desc.Handler = func(_ any, stream grpc.ServerStream) error {
					ran.Store(true)
					return stream.SendMsg(wrapperspb.String("hello"))
				}
				server := grpc.NewServer(grpc.UnaryInterceptor(grpconce.Server(memstore.New(nil), tenant, test.o)), grpc.StreamInterceptor(grpconce.RefuseStreams(test.o)))
				server.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Shop", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{desc}}, nil)
				wire := bufconn.Listen(1 << 20)
				go server.Serve(wire)
				t.Cleanup(server.Stop)
				ctx, stop := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), test.key...))
				defer stop()
				stream, err := dial(t, wire).NewStream(ctx, &desc, watch)
				if err != nil {
					t.Fatal(err)
				}
				var out text
				err = stream.RecvMsg(&out)
				if test.refused {
					refused(t, err, codes.Unimplemented, grpconce.ReasonStream, false)
				} else if err != nil || out.Value != "hello" {
					t.Errorf("got %q, %v", out.Value, err)
				}
				if ran.Load() == test.refused {
					t.Errorf("the handler ran: %t", ran.Load())
				}
			})
		}
	}
}
