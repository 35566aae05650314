package grpconce

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/logs"
)

// Server returns an interceptor that runs each call once, by [once.Do]: claim, handler, record. It panics without a store
// or a caller, and on options that make no sense.
func Server(s once.Store, caller Caller, o *Options) grpc.UnaryServerInterceptor {
	return newGuard(s, caller, o, func(ctx context.Context, w once.Work[answer], h handler) (answer, error) {
		return once.Do(ctx, s, w, func(ctx context.Context, _ once.Key) (answer, error) { return h(ctx) })
	}).intercept
}

// ServerTx returns an interceptor that runs each call in a transaction of the store, by [once.DoTx]: what the handler writes
// through [TxFrom] and its response are one commit. Recorded refusals roll the rows back; every other error does, too, and
// frees the key. It panics as [Server] does.
//
// The handler may be called again after a deadlock, a serialization failure or a lost commit, and with Options.Speculative
// in vain for a duplicate, so it does nothing that leaves the database, and sets no header that differs: those of all runs are sent. What it does
// to its request is not seen by the next run, if that is a message of the current API. It returns the errors of its
// statements with %w: a status made from the text of a conflict, say by status.Errorf(codes.Internal, "%v", err), is not
// recognised as one and is not tried again; and a status with a code that is recorded is the answer, even where a conflict
// is wrapped beside it. A call without a key has no transaction.
func ServerTx[Tx any](s once.TxStore[Tx], caller Caller, o *Options) grpc.UnaryServerInterceptor {
	g := newGuard(s, caller, o, func(ctx context.Context, w once.Work[answer], h handler) (answer, error) {
		return once.DoTx(ctx, s, w, func(ctx context.Context, tx Tx) (answer, error) {
			return h(context.WithValue(ctx, txKey[Tx]{}, tx))
		})
	})
	g.again = true
	return g.intercept
}

type txKey[Tx any] struct{}

// TxFrom returns the transaction that the call of a handler behind [ServerTx] runs in. There is none in a call without a key.
func TxFrom[Tx any](ctx context.Context) (Tx, bool) {
	tx, ok := ctx.Value(txKey[Tx]{}).(Tx)
	return tx, ok
}

// handler runs the handler of a call and says what becomes of its key.
type handler func(context.Context) (answer, error)

// guard is an interceptor without the type of its transaction.
type guard struct {
	Options
	store  once.Store
	caller Caller
	op     *once.Operation[answer]
	run    func(context.Context, once.Work[answer], handler) (answer, error)
	again  bool // run may call the handler more than once
}

func newGuard(s once.Store, caller Caller, o *Options, run func(context.Context, once.Work[answer], handler) (answer, error)) *guard {
	if o == nil {
		o = new(Options)
	}
	o.check(s, caller)
	g := &guard{Options: *o, store: s, caller: caller, run: run}
	g.op = g.operation()
	return g
}

func (g *guard) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	key, sent, err := incomingKey(ctx)
	switch {
	case err != nil:
		return nil, refuse(ReasonKeyInvalid, err.Error(), 0, nil)
	case sent:
		return g.guarded(ctx, key, req, info, next)
	case g.Required != nil && g.Required(info.FullMethod):
		return nil, refuse(ReasonKeyMissing, "this method needs a key: send the metadata "+KeyMetadata, 0, nil)
	default:
		return next(ctx, req)
	}
}

func (g *guard) guarded(ctx context.Context, key string, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	caller, err := g.caller(ctx, info)
	work := g.op.For(key).In(caller)
	if err != nil || caller == "" || work.Key().Validate() != nil { // the rest of the key has been checked
		g.store.Options().Logger.InfoContext(ctx, "grpconce: no caller", logs.Spaced(info.FullMethod), "method", info.FullMethod, "caller", caller, "error", err)
		return nil, refuse(ReasonCallerUnknown, "the caller is not known", 0, nil)
	}
	input, err := g.fingerprint(info.FullMethod, req)
	if err != nil {
		g.store.Options().Logger.ErrorContext(ctx, "grpconce: no fingerprint", logs.Spaced(info.FullMethod), "method", info.FullMethod, "error", err)
		return nil, refuse(ReasonMisconfigured, "the request cannot be compared with others", 0, nil)
	}
	v, refused := g.admit(ctx, work.Key())
	if refused != nil {
		return nil, refused
	}
	defer v.leave()
	patient, detach := detachable(ctx)
	a, err := g.run(patient, work.Input(input).Report(&v.report), func(ctx context.Context) (answer, error) {
		v.claimed = true
		if !detach() {
			return answer{}, once.NotDone(context.Canceled)
		}
		return g.call(ctx, req, info, next)
	})
	detach()
	v.err = err
	if v.report.Replayed {
		// It fails only if nobody is left to read it.
		_ = grpc.SetHeader(ctx, metadata.Pairs(ReplayedMetadata, "true"))
	}
	return g.reply(ctx, work.Key(), a, err)
}

// detachable returns a context that ends with ctx until it is detached, which fails if it has ended already.
func detachable(ctx context.Context) (patient context.Context, detach func() bool) {
	patient, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return patient, sync.OnceValue(context.AfterFunc(ctx, cancel))
}

func (g *guard) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer, error) {
	if g.Timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, g.Timeout)
		defer cancel()
		ctx = limited
	}
	if message, ok := req.(proto.Message); ok && g.again {
		req = proto.Clone(message) // the next run must not find what this one does to it
	}
	response, err := next(ctx, req)
	if err == nil {
		return answer{response: response}, nil
	}
	refusal := statusOf(err)
	err = g.verdict(info.FullMethod, refusal, err)
	return answer{refusal: refusal, final: errors.Is(err, once.ErrRejected) && !errors.Is(err, errtree.ErrNotDone)}, err
}

// verdict is what once is told of a handler's error. It keeps the error in its tree, so that a conflict is recognised.
func (g *guard) verdict(fullMethod string, s *status.Status, err error) error {
	if errors.Is(err, errtree.ErrNotDone) || errors.Is(err, once.ErrRejected) {
		return err
	}
	switch g.decide(fullMethod, s) {
	case Record:
		return once.ErrRejected
	case Release:
		return once.NotDone(err)
	default:
		return err
	}
}

// fingerprint digests the method and the request, which cannot run into each
// other. A call that waits for another holds no more than that.
func (g *guard) fingerprint(fullMethod string, req any) (input []byte, err error) {
	input = binary.BigEndian.AppendUint64(nil, uint64(len(fullMethod)))
	input = append(input, fullMethod...)
	if g.Fingerprint != nil {
		chosen, err := g.Fingerprint(fullMethod, req)
		input = append(input, chosen...)
		sum := sha256.Sum256(input)
		return sum[:], err
	}
	message, err := messageOf(req)
	if err != nil {
		return nil, err
	}
	input, err = proto.MarshalOptions{Deterministic: true}.MarshalAppend(input, message)
	sum := sha256.Sum256(input)
	return sum[:], err
}
