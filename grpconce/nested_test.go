package grpconce_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// TestAnInterceptorInsideAnotherIsRefused: two guards of one call with one key
// cannot both claim it. The mistake leaves the key free.
func TestAnInterceptorInsideAnotherIsRefused(t *testing.T) {
	store := memstore.New(nil)
	server := grpconce.Server(store, tenant, nil)
	for name, test := range map[string]struct {
		outer, inner grpc.UnaryServerInterceptor
		works        bool
	}{
		"Server in Server":   {outer: server, inner: server},
		"Server in ServerTx": {outer: grpconce.ServerTx(store, tenant, nil), inner: server},
		"ServerTx in Server": {outer: server, inner: grpconce.ServerTx(store, tenant, nil)},
		"another Operation":  {outer: server, inner: grpconce.Server(store, tenant, &grpconce.Options{Operation: "inner"}), works: true},
		"another store":      {outer: server, inner: grpconce.Server(memstore.New(nil), tenant, nil), works: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, echo, test.outer, test.inner)
			for range 2 {
				_, _, err := s.call(t, name, "1")
				if test.works && err != nil {
					t.Error(err)
				} else if !test.works {
					refused(t, err, codes.Internal, grpconce.ReasonMisconfigured, false)
				}
			}
			if !test.works && s.runs.Load() > 0 {
				t.Error("the handler ran")
			}
		})
	}
}
