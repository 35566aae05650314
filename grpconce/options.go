package grpconce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/effectively-once/once"
)

// Caller says whose call it is: the tenant or client that was authenticated. Keys of different callers are different keys.
// It is called before anything is claimed. An error, or no name at all, is answered with Unauthenticated: there is no caller
// that all share.
type Caller func(ctx context.Context, info *grpc.UnaryServerInfo) (string, error)

// Decision is what becomes of the key when the handler has failed.
type Decision int

const (
	ByCode  Decision = iota // what the documentation of the package says of the code
	Record                  // the status is the answer, for every repeat
	Release                 // nothing happened: the next call with this key is the first again
	Unknown                 // nobody knows what happened: nothing is run again before somebody finds out
)

// Options are the options of a server. A nil *Options and the zero value work.
type Options struct {
	// Operation is part of every key. Methods behind one interceptor share the keys of a caller, so that one key for two
	// methods is a mistake that is noticed. Without a slash. Default "grpc".
	Operation string

	// Required says which methods, like "/shop.Orders/Place", refuse a call without a key. Default: none.
	Required func(fullMethod string) bool

	Policy once.Policy // how long repeats wait and are remembered. With Wait: once.NoWait they do not wait

	// OnUnknown says what becomes of a call whose handler died, or answered that it does not know. Default: once.Park,
	// unless there is a Lookup. Resend runs the handler again.
	OnUnknown once.OnUnknown

	// Lookup finds out whether the call with this key happened, and with what response. See [once.Operation]. With
	// once.ErrRejected, the status in the error is the recorded answer.
	Lookup func(context.Context, once.Key) (response proto.Message, happened bool, err error)

	// Fingerprint returns what two requests with one key must have in common; the method is added to it.
	// Default: the deterministic encoding of the message.
	Fingerprint func(fullMethod string, request any) ([]byte, error)

	// Decide chooses by the status of a handler that has failed, and has said neither once.NotDone nor once.ErrRejected.
	// ServerTx rolls back either way: for it, Unknown is Release.
	Decide func(fullMethod string, s *status.Status) Decision

	// Admit, if it is not nil, is asked for room for a key before it is claimed, and does not ask the store. Where wait is
	// above 0 there is none: a new key gets ResourceExhausted, to come back after it, and nothing is claimed. A key that
	// the store knows is let in all the same, which costs a look. Else leave is called once when the call is over, with
	// whether the key may be in the store now and was not before. Made for the Admit of janitor.Quota.
	Admit func(once.Key) (leave func(kept bool), wait time.Duration)

	// Speculative is [once.Operation.Speculative], for ServerTx: a repeat of a call that is still running may enter the
	// handler, without effect and without an answer of its own. Default false: it enters nothing.
	Speculative bool

	// Timeout bounds a handler that has claimed its key, in place of the client's deadline. Default 0: no bound.
	Timeout time.Duration
}

// Ask finds out about a record of these options in [once.Unknown], out of band: see [once.Operation.Ask].
func (o *Options) Ask(ctx context.Context, s once.Store, rec once.Record) (once.Record, error) {
	return o.operation().Ask(ctx, s, rec)
}

// operation declares the work that the options describe.
func (o *Options) operation() *once.Operation[answer] {
	if o == nil {
		o = new(Options)
	}
	op := &once.Operation[answer]{Name: cmp.Or(o.Operation, "grpc"), Policy: o.Policy, OnUnknown: o.OnUnknown,
		Speculative: o.Speculative, Codec: codec{}}
	switch {
	case o.Lookup != nil:
		op.Lookup = o.lookup
	case o.OnUnknown == 0:
		op.OnUnknown = once.Park
	}
	return op
}

// lookup gives what was found the form of what is recorded.
func (o *Options) lookup(ctx context.Context, key once.Key) (answer, bool, error) {
	response, happened, err := o.Lookup(ctx, key)
	switch {
	case errors.Is(err, once.ErrRejected):
		return answer{refusal: statusOf(err)}, happened, err
	case err != nil || !happened:
		return answer{}, happened, err
	default:
		return answer{response: response}, true, nil
	}
}

// check panics where a program is wrong, like grpc.Server.RegisterService.
func (o *Options) check(s once.Store, caller Caller) {
	if s == nil || caller == nil {
		panic("grpconce: the store and the function that says who calls are mandatory")
	}
	if o.Timeout < 0 {
		panic("grpconce: Options.Timeout is negative")
	}
	if _, err := o.Ask(context.Background(), s, once.Record{}); err != nil { // of no record, it only checks the declaration
		panic(fmt.Sprintf("grpconce: %v", err))
	}
}

func (o *Options) decide(fullMethod string, s *status.Status) Decision {
	if o.Decide != nil {
		if d := o.Decide(fullMethod, s); d != ByCode {
			return d
		}
	}
	switch s.Code() {
	case codes.FailedPrecondition:
		if ReasonOf(s.Err()) != "" {
			return Unknown // of a server that the handler has called: there the call may well have happened
		}
		return Record
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.OutOfRange,
		codes.Unimplemented:
		return Record
	}
	return Unknown
}
