package grpconce_test

import (
	"context"
	"io"
	"maps"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/internal/errtree/errtreetest"
	"github.com/effectively-once/once/store/memstore"
)

// badStatus is an error of a handler whose status panics.
type badStatus struct{ error }

func (badStatus) GRPCStatus() *status.Status { panic("GRPCStatus") }

// A handler whose error misbehaves is answered, and its key ends.
func TestUnrulyErrorsOfHandlers(t *testing.T) {
	caller := func(context.Context, *grpc.UnaryServerInfo) (string, error) { return "acme", nil }
	all := maps.Clone(errtreetest.Unruly)
	all["GRPCStatus"] = badStatus{io.EOF}
	for name, bad := range all {
		s := memstore.New(nil)
		for kind, server := range map[string]grpc.UnaryServerInterceptor{
			"Server": grpconce.Server(s, caller, nil), "ServerTx": grpconce.ServerTx(s, caller, nil),
		} {
			key := kind + " " + name
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpconce.KeyMetadata, key))
			_, err := server(ctx, wrapperspb.String("tea"), &grpc.UnaryServerInfo{FullMethod: place},
				func(context.Context, any) (any, error) { return nil, bad })
			if status.Code(err) == codes.OK {
				t.Errorf("%s %s: the answer is %v", kind, name, err)
			}
			page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running}})
			if err != nil || len(page.Records) > 0 {
				t.Errorf("%s %s: still running: %v, %v", kind, name, page.Records, err)
			}
		}
	}
}
