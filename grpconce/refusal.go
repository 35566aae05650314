package grpconce

import (
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/effectively-once/once"
)

// Domain is the domain of the ErrorInfo in every error that a server
// interceptor makes itself.
const Domain = "once"

// Reason says why a server interceptor returned an error of its own. The package
// documentation has a table.
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
	ReasonStream           Reason = "STREAM_NOT_GUARDED"
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
	ReasonStream:           codes.Unimplemented,
}

const (
	soon   = time.Second // RetryInfo if no better delay is known
	parked = time.Minute // if a person has to decide
)

// ReasonOf returns why a server interceptor returned err. It returns an empty
// Reason for errors of handlers and transports. A handler that passes on the
// status of another guarded service also passes on its reason, which is about
// the key of that service. Return a new status instead.
func ReasonOf(err error) Reason {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == Domain {
			return Reason(info.Reason)
		}
	}
	return ""
}

// refuse returns an error of the interceptor. If later is above 0, the client
// may repeat the call after it.
func refuse(r Reason, text string, later time.Duration, facts map[string]string) error {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: string(r), Domain: Domain, Metadata: facts}}
	if later > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(later)})
	}
	s, _ := status.New(codeOf[r], text).WithDetails(details...) // no reason has the code OK, and the details are ASCII
	return s.Err()
}

// explain returns the error that a client gets for an error of once. It says
// what the client can do, and nothing about the server.
func explain(err error) error {
	later, ok := once.MayRetry(err)
	if !ok || later <= 0 {
		later = soon
	}
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	// An unknown outcome comes first: other errors in the tree may be why it
	// could not be recorded.
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
