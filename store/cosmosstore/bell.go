package cosmosstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/store"
	"github.com/effectively-once/once/store/cas"
)

// HearOutbox listens to the change feed of the container for messages, as often as
// Options.FeedEvery says.
func (s *Store) HearOutbox(ctx context.Context) (store.Ear, error) {
	e := s.engine
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	if e.feedEvery < 0 {
		return deaf{}, nil
	}
	l := &ear{engine: e, pause: e.feedEvery}
	ctx, cancel := patient(ctx)
	defer cancel()
	ranges, err := e.container.ReadFeedRanges(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("cosmosstore: read the feed ranges of the container %s: %w", e.container.ID(), err)
	}
	for _, r := range ranges {
		l.feeds = append(l.feeds, &feed{of: r})
	}
	l.read = time.Now()
	if err := l.each(func(f *feed) (heard bool, err error) { return f.begin(ctx, e) }); err != nil {
		return nil, fmt.Errorf("cosmosstore: begin to read the change feed of the container %s: %w", e.container.ID(), err)
	}
	return l, nil
}

// deaf hears nothing, so relays poll.
type deaf struct{}

func (deaf) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (deaf) Far() bool { return false }

func (deaf) Close() {}

// ear reads the feeds of all ranges. Nothing is read between two Waits, because
// the feeds keep its place.
type ear struct {
	engine *engine
	feeds  []*feed
	heard  bool          // since the last Wait that returned nil
	read   time.Time     // when the feeds were read
	pause  time.Duration // between reads
}

const (
	defaultFeedEvery = 250 * time.Millisecond

	// maxPause is the longest pause while requests are throttled.
	maxPause = 30 * time.Second

	// maxChanges and maxChangeBytes are how many changes of a range one read may have.
	// If there are more, the feed goes on at its end, and relays look for messages.
	// A look costs about as much as reading as many items.
	maxChanges     = 100
	maxChangeBytes = 1 << 20
)

// Wait returns when a message was put that relays publish now or later, or when
// there were too many changes to read them all.
func (l *ear) Wait(ctx context.Context) error {
	single := policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1}) // a pause follows each read
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.heard {
			l.heard = false
			return nil
		}
		if err := backoff.Sleep(ctx, time.Until(l.read.Add(l.pause))); err != nil {
			return err
		}
		l.read = time.Now()
		err := l.each(func(f *feed) (heard bool, err error) { return f.next(single, l.engine) })
		switch {
		case err == nil:
			l.pause = l.engine.feedEvery
		case ctx.Err() != nil:
			return ctx.Err()
		case isThrottled(statusOf(err)):
			l.pause = min(max(2*l.pause, retryAfter(err)), maxPause)
		default:
			return fmt.Errorf("cosmosstore: read the change feed of the container %s: %w", l.engine.container.ID(), err)
		}
	}
}

// each reads each feed once, several at a time. It reads those that fail once more,
// one at a time: when several partitions are split, reads that run at the same time
// invalidate what the client has just learned of the new ones, until it gives up. It
// returns a throttle only if there is no other error.
func (l *ear) each(read func(*feed) (heard bool, err error)) error {
	const atOnce = 16
	errs := make([]error, len(l.feeds))
	var heard atomic.Bool
	var reading sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i, f := range l.feeds {
		free <- struct{}{}
		reading.Go(func() {
			defer func() { <-free }()
			news, err := read(f)
			if errs[i] = err; news {
				heard.Store(true)
			}
		})
	}
	reading.Wait()
	var throttled error
	for i, f := range l.feeds {
		var lost *url.Error // the client has repeated the request
		if err := errs[i]; err != nil && !isThrottled(statusOf(err)) && !errors.As(err, &lost) {
			news, err := read(f)
			if errs[i] = err; news {
				heard.Store(true)
			}
		}
		if errs[i] != nil && !isThrottled(statusOf(errs[i])) {
			return errs[i]
		}
		throttled = cmp.Or(throttled, errs[i])
	}
	l.heard = l.heard || heard.Load()
	return throttled
}

// Far reports true, because a feed has the writes of all.
func (l *ear) Far() bool { return true }

// Close does nothing: an ear holds no connection.
func (l *ear) Close() {}

// feed is the change feed of a range of partition keys. The client reads it on when
// the partition that has them is split.
type feed struct {
	of    azcosmos.FeedRange
	place string // where it goes on
}

// begin lets a feed go on at its end. It reports whether there were changes
// meanwhile.
//
// The end is the entity tag *. The client has ChangeFeedOptions.StartFrom too, but
// writes its zone as UTC, and the service ignores a time that is not in the format
// that it expects, which has GMT. Then it sends all items of the container.
func (f *feed) begin(ctx context.Context, e *engine) (heard bool, err error) {
	end := azcosmos.ChangeFeedResponse{FeedRange: &f.of, Response: azcosmos.Response{ETag: "*"}}
	place, err := end.GetCompositeContinuationToken()
	if err != nil {
		return false, err
	}
	const reads = 4
	for range reads {
		page, err := readFeed(ctx, e, place)
		switch {
		case err != nil:
			return heard, err
		case page.ETag == "":
			return heard, errors.New("the service does not say where it ends")
		case len(page.Items) == 0:
			f.place = page.ContinuationToken
			return heard, nil
		}
		place, heard = page.ContinuationToken, true
	}
	return heard, errors.New("the service does not begin it at its end")
}

// next reads what has changed since the last read, and reports whether a relay
// should look for messages.
func (f *feed) next(ctx context.Context, e *engine) (heard bool, err error) {
	page, err := readFeed(ctx, e, f.place)
	if err != nil {
		return false, err
	}
	f.place = page.ContinuationToken
	size := 0
	for _, item := range page.Items {
		size += len(item)
		heard = heard || isNews(item)
	}
	if len(page.Items) < maxChanges && size < maxChangeBytes {
		return heard, nil
	}
	_, err = f.begin(ctx, e)
	return true, err
}

func readFeed(ctx context.Context, e *engine, place string) (azcosmos.ChangeFeedResponse, error) {
	return e.container.ReadChangeFeed(ctx, &azcosmos.ChangeFeedOptions{Continuation: &place, MaxItemCount: maxChanges})
}

// isNews reports whether an item is a message that is Pending or Delayed.
func isNews(item []byte) bool {
	var is struct {
		ID   string `json:"id"`
		Once struct {
			Out string `json:"out"`
		} `json:"once"`
	}
	// Items of other programs may have anything in these properties.
	return json.Unmarshal(item, &is) == nil && strings.HasPrefix(is.ID, docPrefix) && cas.WakesRelays(is.Once.Out)
}

// retryAfter returns how long the service asks to wait after an error.
func retryAfter(err error) time.Duration {
	var refused *azcore.ResponseError
	if !errors.As(err, &refused) || refused.RawResponse == nil {
		return 0
	}
	ms, err := strconv.ParseInt(refused.RawResponse.Header.Get("x-ms-retry-after-ms"), 10, 32)
	if err != nil {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}
