package grpconce

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/admission"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/logs"
)

// Server returns an interceptor that runs each call by [once.Do]: it claims the
// key, runs the handler and records its response. It panics if s or caller is
// nil or the options are invalid.
func Server(s once.Store, caller Caller, o *Options) grpc.UnaryServerInterceptor {
	return newGuard(s, caller, o, func(ctx context.Context, w once.Work[answer], h handler) (answer, error) {
		return once.Do(ctx, s, w, func(ctx context.Context, _ once.Key) (answer, error) { return h(ctx) })
	}).intercept
}

// ServerTx returns an interceptor that runs each call in a transaction of the
// store, by [once.DoTx]. The rows that the handler writes through [TxFrom] and
// its response are one commit. Every error of the handler rolls the rows back.
// A recorded refusal is kept, and any other error frees the key. ServerTx panics
// like [Server].
//
// The handler may be called again after a deadlock, a serialization failure or
// a lost commit. With Options.Speculative, it may be called for a duplicate,
// without effect. So it must not act outside of the database, and must set the
// same headers in each run, because those of all runs are sent. A change to its
// request is invisible to the next run if the request is a message of the
// current protobuf API.
//
// The handler must wrap the errors of its statements with %w. A status made
// from the text of a conflict, such as
// status.Errorf(codes.Internal, "%v", err), is not recognised as a conflict and
// is not retried. A status with a code that is recorded is the response, even
// if it is joined with a conflict. A call without a key has no transaction.
func ServerTx[Tx any](s once.TxStore[Tx], caller Caller, o *Options) grpc.UnaryServerInterceptor {
	g := newGuard(s, caller, o, func(ctx context.Context, w once.Work[answer], h handler) (answer, error) {
		return once.DoTx(ctx, s, w, func(ctx context.Context, tx Tx) (answer, error) {
			return h(context.WithValue(ctx, txKey[Tx]{}, tx))
		})
	})
	g.inTx = true
	return g.intercept
}

type txKey[Tx any] struct{}

// TxFrom returns the transaction of the call in a handler inside [ServerTx]. A
// call without a key has none.
func TxFrom[Tx any](ctx context.Context) (Tx, bool) {
	tx, ok := ctx.Value(txKey[Tx]{}).(Tx)
	return tx, ok
}

// handler runs the handler of a call, and returns its answer in the form that
// once takes.
type handler func(context.Context) (answer, error)

// guard is an interceptor. Its run hides the type of the transaction.
type guard struct {
	Options
	store  once.Store
	caller Caller
	op     *once.Operation[answer]
	run    func(context.Context, once.Work[answer], handler) (answer, error)
	inTx   bool // run is a transaction, and may call the handler more than once
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
	work, err := g.work(ctx, key, req, info)
	if err != nil {
		return nil, err
	}
	self := claimed{work.Key(), g.store.Options()}
	if ctx.Value(claimedKey{}) == self { // it would wait for itself
		g.store.Options().Logger.ErrorContext(ctx, "grpconce: an interceptor is inside of another with the same Operation and caller: use one of them",
			logs.Spaced(info.FullMethod), "method", info.FullMethod)
		return nil, once.NotDone(refuse(ReasonMisconfigured, "the server guards this call twice; nothing was done", 0, nil))
	}
	leave, err := admission.Enter(ctx, g.store, g.Admit, work.Key())
	if err != nil {
		return g.reply(ctx, work.Key(), answer{}, err)
	}
	progress := &admission.Progress{InTx: g.inTx}
	defer func() { leave(progress.LeftRecord(ctx, err)) }()
	claiming, detach := admission.UntilDetached(ctx)
	var a answer
	a, err = g.run(claiming, work.Report(&progress.Report), func(ctx context.Context) (answer, error) {
		progress.Phase = admission.Claimed
		if !detach() {
			return answer{}, once.NotDone(context.Canceled)
		}
		progress.Phase = admission.Entered
		return g.call(context.WithValue(ctx, claimedKey{}, self), req, info, next)
	})
	detach()
	if progress.Report.Replayed {
		// It fails only if the client is gone.
		_ = grpc.SetHeader(ctx, metadata.Pairs(ReplayedMetadata, "true"))
	}
	return g.reply(ctx, work.Key(), a, err)
}

// claimed is the key that a handler runs under, in the store with these options.
type claimed struct {
	key   once.Key
	store *once.Options
}

type claimedKey struct{}

// work returns the unit of work of a call. An error is the answer.
func (g *guard) work(ctx context.Context, key string, req any, info *grpc.UnaryServerInfo) (once.Work[answer], error) {
	caller, err := g.caller(ctx, info)
	work := g.op.For(key).In(caller)
	if err != nil || caller == "" || work.Key().Validate() != nil { // the ID has been checked
		g.store.Options().Logger.InfoContext(ctx, "grpconce: no caller", logs.Spaced(info.FullMethod), "method", info.FullMethod, "caller", caller, "error", err)
		return work, refuse(ReasonCallerUnknown, "the caller is not known", 0, nil)
	}
	input, err := g.fingerprint(info.FullMethod, req)
	if err != nil {
		g.store.Options().Logger.ErrorContext(ctx, "grpconce: no fingerprint", logs.Spaced(info.FullMethod), "method", info.FullMethod, "error", err)
		return work, refuse(ReasonMisconfigured, "the request cannot be compared with others", 0, nil)
	}
	return work.Input(input), nil
}

// fingerprint returns a digest of the method and the request. The method goes in
// with its length.
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

// call runs the handler.
func (g *guard) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer, error) {
	if g.Timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, g.Timeout)
		defer cancel()
		ctx = limited
	}
	if message, ok := req.(proto.Message); ok && g.inTx {
		req = proto.Clone(message) // a change must be invisible to the next run
	}
	response, err := next(ctx, req)
	if err == nil {
		return answer{response: response}, nil
	}
	err = errtree.Tame(err)
	refusal := statusOf(err)
	err = g.verdict(info.FullMethod, refusal, err)
	return answer{refusal: refusal, final: errors.Is(err, once.ErrRejected) && !errors.Is(err, errtree.ErrNotDone)}, err
}

// verdict returns the error that once gets for an error of a handler. It wraps
// that error unless it is recorded, so that once recognises a conflict.
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

// reply returns what the client gets: the answer, or the reason why there is
// none.
func (g *guard) reply(ctx context.Context, key once.Key, a answer, err error) (any, error) {
	switch {
	case err == nil && a.refusal == nil:
		return a.response, nil
	case a.refusal != nil && !isOverruled(err) && (!a.final || errors.Is(err, once.ErrRejected)):
		return nil, a.refusal.Err()
	case a.response == nil && ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err() // the client does not read it
	}
	var noRoom *admission.NoRoomError
	if errors.As(err, &noRoom) {
		return nil, refuse(ReasonNoRoom, "there is no room for new keys of this caller; nothing was done: repeat the call later, with the same key", noRoom.RetryAfter, nil)
	}
	refusal := explain(err)
	g.store.Options().Logger.WarnContext(ctx, "grpconce: answered without the handler's answer", logs.Spaced(string(ReasonOf(refusal))), "key", key, "error", err)
	return nil, refusal
}

// isOverruled reports whether the handler's answer does not count, because
// another attempt may have another one, or the database has rolled it back.
func isOverruled(err error) bool {
	unknown := errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked)
	return errors.Is(err, once.ErrLeaseLost) || errors.Is(err, once.ErrConflict) && !unknown
}
