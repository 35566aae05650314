package grpconce

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/logs"
)

// Domain is the domain of the ErrorInfo in every answer that a server interceptor gives by itself.
const Domain = "once"

// Reason says why a server interceptor has answered by itself. The documentation of the package has the table.
type Reason string

const (
	ReasonKeyMissing       Reason = "IDEMPOTENCY_KEY_MISSING"
	ReasonKeyInvalid       Reason = "IDEMPOTENCY_KEY_INVALID"
	ReasonCallerUnknown    Reason = "CALLER_UNKNOWN"
	ReasonMisconfigured    Reason = "MISCONFIGURED"
	ReasonMismatch         Reason = "IDEMPOTENCY_KEY_MISMATCH"
	ReasonInProgress       Reason = "IN_PROGRESS"
	ReasonOutcomeUnknown   Reason = "OUTCOME_UNKNOWN"
	ReasonConflict         Reason = "CONFLICT"
	ReasonExpired          Reason = "OUTCOME_EXPIRED"
	ReasonResponseNotKept  Reason = "RESPONSE_NOT_KEPT"
	ReasonResponseTooLarge Reason = "RESPONSE_TOO_LARGE"
	ReasonRecordDamaged    Reason = "RECORD_DAMAGED"
	ReasonStoreUnavailable Reason = "STORE_UNAVAILABLE"
	ReasonNoRoom           Reason = "NO_ROOM"
)

var codeOf = map[Reason]codes.Code{
	ReasonKeyMissing:       codes.InvalidArgument,
	ReasonKeyInvalid:       codes.InvalidArgument,
	ReasonCallerUnknown:    codes.Unauthenticated,
	ReasonMisconfigured:    codes.Internal,
	ReasonMismatch:         codes.FailedPrecondition,
	ReasonInProgress:       codes.Aborted,
	ReasonOutcomeUnknown:   codes.Aborted,
	ReasonConflict:         codes.Aborted,
	ReasonExpired:          codes.FailedPrecondition,
	ReasonResponseNotKept:  codes.FailedPrecondition,
	ReasonResponseTooLarge: codes.Internal,
	ReasonRecordDamaged:    codes.DataLoss,
	ReasonStoreUnavailable: codes.Unavailable,
	ReasonNoRoom:           codes.ResourceExhausted,
}

const (
	soon   = time.Second // where nothing says when to come back
	parked = time.Minute // a person decides
)

// ReasonOf returns why a server interceptor has answered by itself. Empty: it has not, err is the handler's or the transport's.
// A handler that passes on the status of another guarded service passes on its reason, which is about the key there: make
// a status of your own of it.
func ReasonOf(err error) Reason {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == Domain {
			return Reason(info.Reason)
		}
	}
	return ""
}

// refuse is an answer of the interceptor's own. later is when to repeat the call; 0: not.
func refuse(r Reason, text string, later time.Duration, facts map[string]string) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: string(r), Domain: Domain, Metadata: facts}}
	if later > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(later)})
	}
	s, _ := status.New(codeOf[r], text).WithDetails(details...) // no reason has the code OK, and the details are ASCII
	return s.Err()
}

// reply is what the client gets: the answer, or why there is none.
func (g *guard) reply(ctx context.Context, key once.Key, a answer, err error) (any, error) {
	switch {
	case err == nil && a.refusal == nil:
		return a.response, nil
	case a.refusal != nil && !overruled(err) && (!a.final || errors.Is(err, once.ErrRejected)):
		return nil, a.refusal.Err()
	case a.response == nil && ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err() // nobody reads it
	}
	refusal := explain(err)
	g.store.Options().Logger.WarnContext(ctx, "grpconce: answered without the handler's answer", logs.Spaced(string(ReasonOf(refusal))), "key", key, "error", err)
	return nil, refusal
}

// overruled reports whether what the handler said counts for nothing: another attempt may know better, or the database has
// rolled it back.
func overruled(err error) bool {
	open := errors.Is(err, once.ErrOutcomeUnknown) || errors.Is(err, once.ErrParked)
	return errors.Is(err, once.ErrLeaseLost) || errors.Is(err, once.ErrConflict) && !open
}

// explain tells the client what it can do about an error of once. What the error says of the server stays there.
func explain(err error) error {
	later, ok := once.MayRetry(err)
	if !ok || later <= 0 {
		later = soon
	}
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	// First what is not known, whatever else is in the error: it may be why that could not be recorded.
	case is(once.ErrParked):
		return refuse(ReasonOutcomeUnknown, "whether this call happened is not known, and waits for a person to decide", parked, map[string]string{"parked": "true"})
	case is(once.ErrOutcomeUnknown), is(once.ErrLeaseLost):
		return refuse(ReasonOutcomeUnknown, "whether this call happened is not known yet: repeat it with the same key", later, nil)
	case is(once.ErrMismatch):
		return refuse(ReasonMismatch, "this key was first used for another request: send that one unchanged; a new key means new work", 0, nil)
	case is(once.ErrExpired):
		return refuse(ReasonExpired, "this call was answered too long ago to repeat the answer; it is not run again", 0, nil)
	case is(once.ErrOutcomeUnavailable):
		outcome := "done"
		if is(once.ErrRejected) {
			outcome = "refused"
		}
		return refuse(ReasonResponseNotKept, "this call was answered, and the answer was not kept; it is not run again", 0, map[string]string{"outcome": outcome})
	case is(once.ErrCorrupt):
		return refuse(ReasonRecordDamaged, "the record of this call is damaged; it is not run again", 0, nil)
	case is(once.ErrOutcomeTooLarge):
		return refuse(ReasonResponseTooLarge, "the response is too large to be recorded; nothing was done", 0, nil)
	case is(once.ErrInvalid), is(once.ErrInTx):
		return refuse(ReasonMisconfigured, "the server guards this call wrongly; its log says how", 0, nil)
	case is(once.ErrInProgress):
		return refuse(ReasonInProgress, "this call is still running: repeat it with the same key", later, nil)
	case is(once.ErrConflict):
		return refuse(ReasonConflict, "the database kept refusing the transaction; nothing was done", later, nil)
	default:
		return refuse(ReasonStoreUnavailable, "the record of this call cannot be reached: repeat it with the same key", later, nil)
	}
}
