package grpconce_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/admission/admissiontest"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// newRoom returns an Admit with free places.
func newRoom(free int) *admissiontest.Room {
	return admissiontest.NewRoom(free, 7*time.Millisecond)
}

// servers are both ways to guard a handler.
var servers = map[string]func(*memstore.Store, *grpconce.Options) grpc.UnaryServerInterceptor{
	"Server": func(s *memstore.Store, o *grpconce.Options) grpc.UnaryServerInterceptor { return guard(s, o) },
	"ServerTx": func(s *memstore.Store, o *grpconce.Options) grpc.UnaryServerInterceptor {
		return grpconce.ServerTx(s, tenant, o)
	},
}

func TestANewKeyNeedsRoomAndAKnownOneDoesNot(t *testing.T) {
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			r, store := newRoom(1), memstore.New(nil)
			s := open(t, echo, server(store, &grpconce.Options{Admit: r.Admit}))
			if answer, _, err := s.call(t, "a", "tea"); answer != "placed tea" || err != nil {
				t.Errorf("the first: %q, %v", answer, err)
			}
			_, _, err := s.call(t, "b", "tea")
			refused(t, err, codes.ResourceExhausted, grpconce.ReasonNoRoom, true)
			if answer, replayed, err := s.call(t, "a", "tea"); answer != "placed tea" || !replayed || err != nil {
				t.Errorf("a repeat where there is no room: %q, replayed %t, %v", answer, replayed, err)
			}
			_, _, err = s.call(t, "a", "milk")
			refused(t, err, codes.FailedPrecondition, grpconce.ReasonMismatch, false)
			s.ran(t, 1)
			if rec, err := store.Get(t.Context(), once.Key{Scope: "acme", Operation: "grpc", ID: "b"}); err != nil || rec.Attempt != 0 {
				t.Errorf("what was refused has left %+v, %v", rec, err)
			}
			r.Add(1)
			if answer, replayed, err := s.call(t, "b", "tea"); answer != "placed tea" || replayed || err != nil {
				t.Errorf("what was refused, when there is room: %q, replayed %t, %v", answer, replayed, err)
			}
			r.WantLeft(t, "acme a true", "acme b true")
		})
	}
}

// The client comes back by itself when there is room.
func TestAClientWithoutRoomRetries(t *testing.T) {
	r := newRoom(0)
	s := open(t, echo, guard(memstore.New(nil), &grpconce.Options{Admit: r.Admit}))
	attempts := 0
	conn := dial(t, s.wire, grpconce.Client(quick()), func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if attempts++; attempts == 2 {
			r.Add(1)
		}
		return err
	})
	var out text
	if err := conn.Invoke(t.Context(), place, wrapperspb.String("tea"), &out); err != nil || attempts != 3 {
		t.Errorf("%v after %d attempts", err, attempts)
	}
	s.ran(t, 1)
}

// Whether a call has left a record that was not there before.
func TestACallThatLeftARecordKeepsItsPlace(t *testing.T) {
	work := func(ctx context.Context, in *text) (*text, error) {
		switch md, _ := metadata.FromIncomingContext(ctx); fmt.Sprint(md.Get("do")) {
		case "[refuse]":
			return nil, status.Error(codes.NotFound, "no tea")
		case "[release]":
			return nil, once.NotDone(errors.New("no tea today"))
		case "[fail]":
			return nil, errors.New("boom")
		}
		return echo(ctx, in)
	}
	for name, kept := range map[string]map[string]string{
		"Server":   {"refuse": "true", "release": "true", "fail": "true"},
		"ServerTx": {"refuse": "true", "release": "false", "fail": "false"},
	} {
		r := newRoom(1000)
		s := open(t, work, servers[name](memstore.New(nil), &grpconce.Options{Admit: r.Admit}))
		for _, what := range []string{"refuse", "release", "fail"} {
			t.Run(name+" "+what, func(t *testing.T) {
				_, _, _ = s.callWith(t.Context(), place, "tea", grpconce.KeyMetadata, what, "do", what)
				r.WantLeft(t, "acme "+what+" "+kept[what])
				_, _, _ = s.call(t, what, "tea") // replayed, run again as the second attempt, or run for the first time
				again := map[string]string{"true": "false", "false": "true"}[kept[what]]
				r.WantLeft(t, "acme "+what+" "+again)
				_, _, _ = s.call(t, what, "tea")
				r.WantLeft(t, "acme "+what+" false")
			})
		}
	}
}

// A released key is known, so it runs without room. If the store cannot be
// read, nothing runs.
func TestAReleasedKeyIsKnownWhereThereIsNoRoom(t *testing.T) {
	r, store := newRoom(1), &admissiontest.HookedStore{Store: memstore.New(nil)}
	var first atomic.Bool
	first.Store(true)
	s := open(t, func(ctx context.Context, in *text) (*text, error) {
		if first.Swap(false) {
			return nil, once.NotDone(errors.New("later"))
		}
		return echo(ctx, in)
	}, guard(store, &grpconce.Options{Admit: r.Admit}))
	_, _, released := s.call(t, "a", "now")
	_, replayed, err := s.call(t, "a", "now")
	if released == nil || err != nil || replayed {
		t.Errorf("first %v, then %v, replayed %t", released, err, replayed)
	}
	s.ran(t, 2)
	store.AfterGet = func(once.Record, error) (once.Record, error) { return once.Record{}, errors.New("boom") }
	_, _, err = s.call(t, "b", "now")
	refused(t, err, codes.Unavailable, grpconce.ReasonStoreUnavailable, true)
	s.ran(t, 2)
}

// An abandoned claim leaves a record although nothing runs. It keeps its place.
// Otherwise a client that leaves at the right moment could fill the store for
// free.
func TestACallThatLeavesDuringItsClaimKeepsItsPlace(t *testing.T) {
	r, store := newRoom(5), &admissiontest.DisconnectStore{Store: memstore.New(nil)}
	server := guard(store, &grpconce.Options{Admit: r.Admit})
	md := metadata.Pairs(grpconce.KeyMetadata, "k", "tenant", "acme")
	ctx, hangUp := context.WithCancel(metadata.NewIncomingContext(t.Context(), md))
	store.Disconnect = hangUp
	_, err := server(ctx, wrapperspb.String("tea"), &grpc.UnaryServerInfo{FullMethod: place}, func(context.Context, any) (any, error) {
		t.Error("the handler was called")
		return nil, nil
	})
	if err == nil {
		t.Error("there is no error")
	}
	key := once.Key{Scope: "acme", Operation: "grpc", ID: "k"}
	if rec, err := store.Get(t.Context(), key); err != nil || rec.Status != once.Absent || rec.Attempt != 1 {
		t.Fatalf("there is %+v, %v: that forces nothing", rec, err)
	}
	r.WantLeft(t, "acme k true")
}
