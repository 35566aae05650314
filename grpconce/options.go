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

// Caller returns the authenticated tenant or client that made the call. Keys of
// different callers are different keys. It is called before anything is
// claimed. If it returns an error or an empty name, the call fails with
// Unauthenticated: no caller is shared by all.
type Caller func(ctx context.Context, info *grpc.UnaryServerInfo) (string, error)

// Decision says what happens to the key after the handler has failed.
type Decision int

const (
	ByCode  Decision = iota // the rule for its code in the package documentation
	Record                  // record the status and replay it
	Release                 // nothing happened: the key is free
	Unknown                 // the outcome is unknown: nothing runs until it is determined
)

// Options configures a server interceptor. A nil *Options and the zero value are
// valid.
type Options struct {
	// Operation is part of every key. Methods of one interceptor share the keys
	// of a caller, so a key that is used for two methods by mistake is
	// detected. It contains no slash. Default: "grpc".
	Operation string

	// Required reports whether a method, such as "/shop.Orders/Place", refuses
	// calls without a key. Default: none does.
	Required func(fullMethod string) bool

	Policy once.Policy // how long repeats wait, and how long keys are kept

	// OnUnknown says what happens to a call whose handler died or reported an
	// unknown outcome. Resend runs the handler again. Default: once.Park, unless
	// Lookup is set.
	OnUnknown once.OnUnknown

	// Lookup reports whether the call with a key happened, and with what
	// response. See [once.Operation]. If err wraps once.ErrRejected, the status
	// in it is recorded.
	Lookup func(context.Context, once.Key) (response proto.Message, happened bool, err error)

	// Fingerprint returns what requests with the same key must have in common.
	// The method is added to it. Default: the deterministic encoding of the
	// message.
	Fingerprint func(fullMethod string, request any) ([]byte, error)

	// Decide overrides the default decision for the status of a handler that has
	// failed with neither once.NotDone nor once.ErrRejected. ServerTx takes
	// Unknown for Release, because it rolls back.
	Decide func(fullMethod string, s *status.Status) Decision

	// Admit, if set, reserves room for a key before it is claimed, without asking
	// the store. If wait is above 0 there is no room: a new key gets
	// ResourceExhausted with that delay, and nothing is claimed. A known key is
	// admitted nevertheless, at the cost of one read. Otherwise leave is called
	// once when the call ends, with kept set if the key is new and may now be in
	// the store. janitor.Quota has a matching Admit.
	Admit func(once.Key) (leave func(kept bool), wait time.Duration)

	// Speculative is [once.Operation.Speculative] for ServerTx: a repeat of a
	// running call may enter the handler, without effect and without a response
	// of its own. Default: false, repeats do not enter.
	Speculative bool

	// Timeout limits a handler that has claimed its key. It replaces the deadline
	// of the client. Default: no limit.
	Timeout time.Duration
}

// Ask determines the outcome of a record in [once.Unknown] that was made with
// these options. See [once.Operation.Ask].
func (o *Options) Ask(ctx context.Context, s once.Store, rec once.Record) (once.Record, error) {
	return o.operation().Ask(ctx, s, rec)
}

// operation returns the operation of the options.
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

// lookup calls Options.Lookup and returns its result as an answer.
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

// check panics if the options are invalid, like grpc.Server.RegisterService.
func (o *Options) check(s once.Store, caller Caller) {
	if s == nil || caller == nil {
		panic("grpconce: the store and the function that says who calls are mandatory")
	}
	if o.Timeout < 0 {
		panic("grpconce: Options.Timeout is negative")
	}
	if _, err := o.Ask(context.Background(), s, once.Record{}); err != nil { // checks the declaration only
		panic(fmt.Sprintf("grpconce: %v", err))
	}
}

// decide returns the decision of Options.Decide, or the default.
func (o *Options) decide(fullMethod string, s *status.Status) Decision {
	if o.Decide != nil {
		if d := o.Decide(fullMethod, s); d != ByCode {
			return d
		}
	}
	switch s.Code() {
	case codes.FailedPrecondition:
		if ReasonOf(s.Err()) != "" {
			return Unknown // from a server that the handler has called, where the call may have happened
		}
		return Record
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.OutOfRange,
		codes.Unimplemented:
		return Record
	}
	return Unknown
}
