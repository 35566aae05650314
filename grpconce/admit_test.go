package grpconce_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// room is an Admit with so many places, which writes down who has left.
type room struct {
	mu     sync.Mutex
	places int
	left   []string
}

func (r *room) admit(key once.Key) (leave func(kept bool), wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places == 0 {
		return nil, 7 * time.Millisecond
	}
	r.places--
	return func(kept bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.left = append(r.left, fmt.Sprint(key.Scope, " ", key.ID, " ", kept))
		if !kept {
			r.places++
		}
	}, 0
}

func (r *room) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places += n
}

func (r *room) wantLeft(t *testing.T, want ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.left, want) {
		t.Errorf("left: %q, want %q", r.left, want)
	}
	r.left = nil
}

// servers are both ways to guard a handler.
var servers = map[string]func(*memstore.Store, *grpconce.Options) grpc.UnaryServerInterceptor{
	"Server": func(s *memstore.Store, o *grpconce.Options) grpc.UnaryServerInterceptor { return guard(s, o) },
	"ServerTx": func(s *memstore.Store, o *grpconce.Options) grpc.UnaryServerInterceptor {
		return grpconce.ServerTx(s, tenant, o)
	},
}

func TestAdmit(t *testing.T) {
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			r, store := &room{places: 1}, memstore.New(nil)
			s := open(t, echo, server(store, &grpconce.Options{Admit: r.admit}))
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
			r.add(1)
			if answer, replayed, err := s.call(t, "b", "tea"); answer != "placed tea" || replayed || err != nil {
				t.Errorf("what was refused, when there is room: %q, replayed %t, %v", answer, replayed, err)
			}
			r.wantLeft(t, "acme a true", "acme b true")
		})
	}
}

// The client comes back by itself when there is room.
func TestAClientThatIsRefused(t *testing.T) {
	r := new(room)
	s := open(t, echo, guard(memstore.New(nil), &grpconce.Options{Admit: r.admit}))
	attempts := 0
	conn := dial(t, s.wire, grpconce.Client(quick()), func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if attempts++; attempts == 2 {
			r.add(1)
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
func TestWhoKeepsAPlace(t *testing.T) {
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
		r := &room{places: 1000}
		s := open(t, work, servers[name](memstore.New(nil), &grpconce.Options{Admit: r.admit}))
		for _, what := range []string{"refuse", "release", "fail"} {
			t.Run(name+" "+what, func(t *testing.T) {
				_, _, _ = s.callWith(t.Context(), place, "tea", grpconce.KeyMetadata, what, "do", what)
				r.wantLeft(t, "acme "+what+" "+kept[what])
				_, _, _ = s.call(t, what, "tea") // replayed, run again as the second attempt, or run for the first time
				again := map[string]string{"true": "false", "false": "true"}[kept[what]]
				r.wantLeft(t, "acme "+what+" "+again)
				_, _, _ = s.call(t, what, "tea")
				r.wantLeft(t, "acme "+what+" false")
			})
		}
	}
}

// A key that was released is known; and where nobody can tell, nothing runs.
func TestKnownOrNotWhereThereIsNoRoom(t *testing.T) {
	r, store := &room{places: 1}, &down{Store: memstore.New(nil)}
	s := open(t, func(ctx context.Context, in *text) (*text, error) {
		if in.Value == "now" && r.places == 0 && len(r.left) == 0 {
			return nil, once.NotDone(errors.New("later"))
		}
		return echo(ctx, in)
	}, guard(store, &grpconce.Options{Admit: r.admit}))
	_, _, first := s.call(t, "a", "now")
	_, replayed, err := s.call(t, "a", "now")
	if first == nil || err != nil || replayed {
		t.Errorf("first %v, then %v, replayed %t", first, err, replayed)
	}
	s.ran(t, 2)
	store.err = errors.New("boom")
	_, _, err = s.call(t, "b", "now")
	refused(t, err, codes.Unavailable, grpconce.ReasonStoreUnavailable, true)
	s.ran(t, 2)
}

// down is a store that cannot be asked.
type down struct {
	*memstore.Store
	err error
}

func (s *down) Get(ctx context.Context, key once.Key) (once.Record, error) {
	if s.err != nil {
		return once.Record{}, s.err
	}
	return s.Store.Get(ctx, key)
}

// leaving is a store whose client leaves when its first claim is on its way.
type leaving struct {
	*memstore.Store
	hangUp func()
}

func (s *leaving) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if s.hangUp == nil {
		return s.Store.Claim(ctx, r)
	}
	s.hangUp()
	s.hangUp = nil
	<-ctx.Done()
	return once.Record{}, ctx.Err()
}

// A claim that is given up leaves a record, and nothing runs. It takes its place: else who leaves at the right moment fills
// the store for nothing.
func TestAPlaceOfACallThatLeavesDuringItsClaim(t *testing.T) {
	r, store := &room{places: 5}, &leaving{Store: memstore.New(nil)}
	server := guard(store, &grpconce.Options{Admit: r.admit})
	md := metadata.Pairs(grpconce.KeyMetadata, "k", "tenant", "acme")
	ctx, hangUp := context.WithCancel(metadata.NewIncomingContext(t.Context(), md))
	store.hangUp = hangUp
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
	r.wantLeft(t, "acme k true")
}
