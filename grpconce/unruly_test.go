package grpconce_test

import (
	"context"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// Errors of handlers whose methods panic.
type (
	withText  struct{ text string } // and a nil pointer to it
	badIs     struct{ error }
	badStatus struct{ error }
)

func (w withText) Error() string             { return w.text }
func (badIs) Is(error) bool                  { panic("Is") }
func (badStatus) GRPCStatus() *status.Status { panic("GRPCStatus") }

// A handler whose error misbehaves is answered, and its key ends.
func TestUnrulyErrorsOfHandlers(t *testing.T) {
	caller := func(context.Context, *grpc.UnaryServerInfo) (string, error) { return "acme", nil }
	for i, bad := range []error{(*withText)(nil), badIs{io.EOF}, badStatus{io.EOF}} {
		s := memstore.New(nil)
		for kind, server := range map[string]grpc.UnaryServerInterceptor{
			"Server": grpconce.Server(s, caller, nil), "ServerTx": grpconce.ServerTx(s, caller, nil),
		} {
			key := fmt.Sprint(kind, i)
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(grpconce.KeyMetadata, key))
			_, err := server(ctx, wrapperspb.String("tea"), &grpc.UnaryServerInfo{FullMethod: place}, func(context.Context, any) (any, error) { return nil, bad })
			if status.Code(err) == codes.OK {
				t.Errorf("%s %d: the answer is %v", kind, i, err)
			}
			page, err := s.List(t.Context(), once.RecordQuery{Status: []once.Status{once.Running}})
			if err != nil || len(page.Records) > 0 {
				t.Errorf("%s %d: still running: %v, %v", kind, i, page.Records, err)
			}
		}
	}
}
