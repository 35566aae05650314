package cosmosstore

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once/internal/servicedate"
	"github.com/effectively-once/once/store/cas"
)

const (
	maxItem  = 2 << 20 // bytes of an item, and of a request
	maxBatch = 100     // operations

	maxPartition = 2 << 10 // bytes of a partition key
)

// isThrottled reports whether the service has refused a request for now: it is
// throttled, or another write of the item is in progress. Nothing was applied.
func isThrottled(status int) bool {
	const retryWith = 449
	return status == http.StatusTooManyRequests || status == retryWith
}

// throttling repeats requests that were throttled. It repeats no others, because
// their first try may have been applied.
var throttling = policy.RetryOptions{
	MaxRetries:    math.MaxInt32 - 1, // the context ends it
	RetryDelay:    20 * time.Millisecond,
	MaxRetryDelay: time.Minute,
	ShouldRetry:   func(r *http.Response, err error) bool { return err == nil && isThrottled(r.StatusCode) },
}

// patient returns a context in which throttled requests are repeated.
func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	cancel := context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
	}
	return policy.WithRetryOptions(ctx, throttling), cancel
}

// execute sends a batch and returns the results of its operations.
func (e *engine) execute(ctx context.Context, batch azcosmos.TransactionalBatch) ([]azcosmos.TransactionalBatchResult, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	for pause := throttling.RetryDelay; ; pause = min(2*pause, time.Second) {
		sent := time.Now()
		// Without the content, the service sends no results at all.
		got, err := e.container.ExecuteTransactionalBatch(ctx, batch, &azcosmos.TransactionalBatchOptions{EnableContentResponseOnWrite: true})
		e.learn(sent, got.RawResponse, err)
		if err != nil {
			return nil, err
		}
		if len(got.OperationResults) == 0 {
			return nil, errors.New("cosmosstore: the service answered a batch without results")
		}
		if cause := causeOf(got.OperationResults); cause < 0 || !isThrottled(int(got.OperationResults[cause].StatusCode)) {
			return got.OperationResults, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// causeOf returns the operation for which a batch was not applied, or -1.
func causeOf(results []azcosmos.TransactionalBatchResult) int {
	for i, r := range results {
		if r.StatusCode >= 300 && r.StatusCode != http.StatusFailedDependency {
			return i
		}
	}
	return -1
}

// learn gives the time in a response of the service to the clock. The service
// numbers each with x-ms-activity-id.
func (e *engine) learn(sent time.Time, r *http.Response, err error) {
	var refused *azcore.ResponseError
	if r == nil && errors.As(err, &refused) {
		r = refused.RawResponse
	}
	if date, ok := servicedate.Of(r, "x-ms-activity-id"); ok {
		e.clock.Learn(sent, date, time.Second)
	}
}

// ask sends a request from whose response the clock learns.
func (e *engine) ask(ctx context.Context) error {
	if e.property.Load() == nil {
		return e.ready(ctx)
	}
	ctx, cancel := patient(ctx)
	defer cancel()
	const id = "once-clock" // which nobody creates
	sent := time.Now()
	got, err := e.container.ReadItem(ctx, azcosmos.NewPartitionKeyString(id), id, nil)
	e.learn(sent, got.RawResponse, err)
	if statusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}

// now returns the time, after the container was checked.
func (e *engine) now(ctx context.Context) (cas.Now, error) {
	if err := e.ready(ctx); err != nil {
		return cas.Now{}, err
	}
	return e.clock.Now(ctx)
}

// statusOf returns the status of the response that an error is, or 0.
func statusOf(err error) int {
	var refused *azcore.ResponseError
	if errors.As(err, &refused) {
		return refused.StatusCode
	}
	return 0
}

// mayHaveBeenApplied reports whether a write that failed with err may have taken
// place, or may still.
func mayHaveBeenApplied(err error) bool {
	switch status := statusOf(err); {
	case status == http.StatusRequestTimeout || status == http.StatusGone || status >= 500:
		return true
	case status > 0:
		return false
	}
	var unknownHost *net.DNSError
	var failed *net.OpError
	return !errors.As(err, &unknownHost) && (!errors.As(err, &failed) || failed.Op != "dial")
}
