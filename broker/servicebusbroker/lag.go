package servicebusbroker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
	"github.com/effectively-once/once/broker"
)

// countedSource is a source whose messages the management API counts.
type countedSource struct {
	*source
	management *admin.Client
}

var _ broker.Lagger = (*countedSource)(nil)

// errNoCount is returned if the service answers without a count.
var errNoCount = errors.New("the answer of the management API has no count of messages")

// Lag returns the number of active messages. Those of a queue that are scheduled
// count as well, because a session delays messages so. The service tells no age.
func (s *countedSource) Lag(ctx context.Context) (broker.Lag, error) {
	n, err := s.count(ctx)
	if err != nil {
		return broker.Lag{}, s.explain("count messages", inOneLine(err))
	}
	return broker.Lag{Messages: n}, nil
}

// count asks the management API. Its client panics if an answer lacks a count.
func (s *countedSource) count(ctx context.Context) (n int64, err error) {
	defer func() {
		switch cause := recover(); cause.(type) {
		case nil:
		case runtime.Error:
			err = errNoCount
		default:
			panic(cause)
		}
	}()
	if s.subscription != "" {
		has, err := s.management.GetSubscriptionRuntimeProperties(ctx, s.entity, s.subscription, nil)
		switch {
		case err != nil:
			return 0, err
		case has == nil:
			return 0, errors.New("it does not exist")
		case s.dead:
			return int64(has.DeadLetterMessageCount), nil
		}
		return int64(has.ActiveMessageCount), nil
	}
	has, err := s.management.GetQueueRuntimeProperties(ctx, s.entity, nil)
	switch {
	case err != nil:
		return 0, err
	case has == nil:
		return 0, errors.New("it does not exist")
	case has.TotalMessageCount > 0 && has.ActiveMessageCount|has.ScheduledMessageCount|has.DeadLetterMessageCount|
		has.TransferMessageCount|has.TransferDeadLetterMessageCount == 0: // the client takes counts that are missing for 0
		return 0, errNoCount
	case s.dead:
		return int64(has.DeadLetterMessageCount), nil
	}
	return int64(has.ActiveMessageCount) + int64(has.ScheduledMessageCount), nil
}

// answerError is an error of the management API. The text of its client has the
// whole answer.
type answerError struct {
	text  string
	cause *azcore.ResponseError
}

func (e *answerError) Error() string { return e.text }
func (e *answerError) Unwrap() error { return e.cause }

// inOneLine shortens an error of the management API, and says which rights it asks
// for.
func inOneLine(err error) error {
	var e *azcore.ResponseError
	if !errors.As(err, &e) {
		return err
	}
	text := fmt.Sprintf("the management API answers %d %s", e.StatusCode, http.StatusText(e.StatusCode))
	if e.StatusCode == http.StatusUnauthorized || e.StatusCode == http.StatusForbidden {
		text += ": the management client needs the right Manage, or the role Azure Service Bus Data Owner"
	}
	return &answerError{text, e}
}
