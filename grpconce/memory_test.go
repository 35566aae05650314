package grpconce_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// TestWaitingCallsHoldNoEncoding: a call that waits for another one with its
// key holds its message, which is the server's, and no encoding of it.
func TestWaitingCallsHoldNoEncoding(t *testing.T) {
	const calls, size = 100, 1 << 20
	finish, running := make(chan struct{}), make(chan struct{})
	var all, compared sync.WaitGroup
	intercept := grpconce.Server(memstore.New(nil), tenant, &grpconce.Options{Policy: once.Policy{Wait: 5 * time.Minute}, Admit: func(once.Key) (func(bool), time.Duration) {
		compared.Done() // it is asked when the fingerprint is made
		return func(bool) {}, 0
	}})
	request := wrapperspb.String(strings.Repeat("x", size))
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("tenant", "acme", grpconce.KeyMetadata, "k"))
	call := func() {
		all.Add(1)
		compared.Add(1)
		go func() {
			defer all.Done()
			_, err := intercept(ctx, request, &grpc.UnaryServerInfo{FullMethod: place}, func(context.Context, any) (any, error) {
				close(running)
				<-finish
				return wrapperspb.String("done"), nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
	}
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := live()
	call()
	<-running
	for range calls {
		call()
	}
	compared.Wait()
	held := live() - before
	t.Logf("%d calls of 1 MiB hold %.1f MiB", calls, float64(held)/(1<<20))
	if held > 20<<20 {
		t.Error("that is more than the message")
	}
	close(finish)
	all.Wait()
}
