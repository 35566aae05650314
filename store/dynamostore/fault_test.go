package dynamostore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/dynamofake"
	"github.com/effectively-once/once/store/dynamostore"
)

// link is the way to the service, on which requests and replies are lost.
type link struct {
	// fault says what happens to the n-th request for an operation, from 1.
	fault func(operation string, n int) fate

	mu   sync.Mutex
	made map[string]int
	late []*http.Request
}

type fate int

const (
	passes    fate = iota
	lost           // the service does not see the request
	unheard        // the service answers, and the reply is lost
	delayed        // the request arrives when the test says so, and the client has given up
	malformed      // the reply ends early
)

var errLost = errors.New("the connection is lost")

func (l *link) Do(r *http.Request) (*http.Response, error) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	l.mu.Lock()
	if l.made == nil {
		l.made = make(map[string]int)
	}
	l.made[operation]++
	n := l.made[operation]
	l.mu.Unlock()
	is := l.fault(operation, n)
	if is == lost {
		return nil, errLost
	}
	if is == delayed {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		late := r.Clone(context.Background())
		late.Body = io.NopCloser(bytes.NewReader(body))
		l.mu.Lock()
		defer l.mu.Unlock()
		l.late = append(l.late, late)
		return nil, errLost
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil || is == passes {
		return response, err
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || is == unheard {
		return nil, errors.Join(errLost, err)
	}
	response.Body = io.NopCloser(bytes.NewReader(body[:len(body)/2]))
	return response, nil
}

// deliver sends what was delayed, and returns the answers.
func (l *link) deliver(t *testing.T) (answers []string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.late {
		response, err := http.DefaultClient.Do(r)
		must(t, err)
		body, err := io.ReadAll(response.Body)
		must(t, err)
		answers = append(answers, fmt.Sprint(response.StatusCode, " ", string(body)))
	}
	l.late = nil
	return answers
}

// via returns a client whose requests go over a link. It tries once, unless the
// options say otherwise.
func via(url string, l *link, options ...func(*dynamodb.Options)) *dynamodb.Client {
	return dial(url, append([]func(*dynamodb.Options){func(o *dynamodb.Options) {
		o.HTTPClient, o.Retryer = l, aws.NopRetryer{}
	}}, options...)...)
}

var pay = &once.Operation[string]{Name: "pay", OnUnknown: once.Park}

// world is a fake with the tables of a store and of a shop.
type world struct {
	*dynamofake.Server
	url   string
	store *dynamostore.Store // over a link without faults
	*shop
}

func newWorld(t testing.TB) *world { return newWorldAt(t, new(dynamofake.Server)) }

func (w *world) via(l *link, o *dynamostore.Options) *dynamostore.Store {
	return dynamostore.New(via(w.url, l), o)
}

// answers checks the number of effects, and that a call on another link gets the
// answer.
func (w *world) answers(t *testing.T, want string, effects int) {
	t.Helper()
	got, err := once.DoTx(t.Context(), w.store, pay.For("1"), func(context.Context, *dynamostore.Tx) (string, error) {
		return "", errors.New("it ran again")
	})
	if err != nil || got != want {
		t.Errorf("the recorded answer is %q, %v, not %q", got, err, want)
	}
	if n, err := w.count(t.Context(), "row"); err != nil || n != effects {
		t.Errorf("there were %d effects, %v, not %d", n, err, effects)
	}
}

// Whatever is lost, and wherever, a caller who persists gets the answer, and
// there is one effect.
func TestLostRequestsAndReplies(t *testing.T) {
	for _, what := range []fate{lost, unheard, malformed} {
		for _, operation := range []string{"GetItem", "PutItem", "TransactWriteItems"} {
			for at := 1; at <= 4; at++ {
				for _, first := range []bool{false, true} {
					t.Run(fmt.Sprint(what, operation, at, first), func(t *testing.T) {
						w := newWorld(t)
						l := &link{fault: func(is string, n int) fate { return fateOf(is == operation && n == at, what) }}
						s := w.via(l, &dynamostore.Options{ClaimFirst: first})
						var got string
						err := errors.New("not called")
						for tries := 0; err != nil && tries < 5; tries++ {
							got, err = once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
								return "paid", w.effect(tx, "row")
							})
						}
						if err != nil || got != "paid" {
							t.Errorf("DoTx returned %q, %v", got, err)
						}
						w.answers(t, "paid", 1)
					})
				}
			}
		}
	}
}

func fateOf(is bool, f fate) fate {
	if is {
		return f
	}
	return passes
}

// The same for work elsewhere, whose claim and settlement are two writes.
func TestLostRequestsAndRepliesOfDo(t *testing.T) {
	for _, what := range []fate{lost, unheard, malformed} {
		for _, operation := range []string{"GetItem", "PutItem"} {
			for at := 1; at <= 3; at++ {
				t.Run(fmt.Sprint(what, operation, at), func(t *testing.T) {
					w := newWorld(t)
					s := w.via(&link{fault: func(is string, n int) fate { return fateOf(is == operation && n == at, what) }}, nil)
					var got string
					runs := 0
					err := errors.New("not called")
					for tries := 0; err != nil && tries < 5; tries++ {
						got, err = once.Do(t.Context(), s, pay.For("1"), func(context.Context, once.Key) (string, error) {
							runs++
							return "paid", nil
						})
					}
					if err != nil || got != "paid" || runs != 1 {
						t.Errorf("Do returned %q, %v after %d runs", got, err, runs)
					}
				})
			}
		}
	}
}

// A commit that arrives when its transaction was given up changes nothing,
// whether the work succeeded since or failed.
func TestALateCommitIsRefused(t *testing.T) {
	for _, fails := range []bool{false, true} {
		w := newWorld(t)
		l := &link{fault: func(is string, n int) fate { return fateOf(is == "TransactWriteItems" && n == 1, delayed) }}
		no, runs := errors.New("out of stock"), 0
		var late []string
		got, err := once.DoTx(t.Context(), w.via(l, nil), pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
			if runs++; runs == 2 {
				if late = l.deliver(t); fails {
					return "", no
				}
			}
			return fmt.Sprint("run ", runs), w.effect(tx, "row")
		})
		if len(late) != 1 || !strings.Contains(late[0], "ConditionalCheckFailed") {
			t.Errorf("the late commit was answered by %q", late)
		}
		switch n, _ := w.count(t.Context(), "row"); {
		case fails && (!errors.Is(err, no) || n != 0):
			t.Errorf("DoTx returned %q, %v with %d effects", got, err, n)
		case !fails && (err != nil || got != "run 2"):
			t.Errorf("DoTx returned %q, %v", got, err)
		case !fails:
			w.answers(t, "run 2", 1)
		}
	}
}

// The SDK repeats a request whose reply was lost. The token makes it one, so the
// work runs once.
func TestTheTokenRecognisesARepeatedCommit(t *testing.T) {
	w := newWorld(t)
	l := &link{fault: func(is string, n int) fate { return fateOf(is == "TransactWriteItems" && n == 1, unheard) }}
	s := dynamostore.New(via(w.url, l, func(o *dynamodb.Options) { o.Retryer = eager() }), nil)
	runs := 0
	got, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		runs++
		return "paid", w.effect(tx, "row")
	})
	if err != nil || got != "paid" || runs != 1 || l.made["TransactWriteItems"] != 2 {
		t.Errorf("DoTx returned %q, %v after %d runs and %v", got, err, runs, l.made)
	}
	w.answers(t, "paid", 1)
}

// An attempt is lost, the next one of the SDK is refused because of a condition
// of the work, and the first then arrives. The caller must not have been told
// that nothing happened.
func TestARefusalSaysNothingOfAnEarlierAttempt(t *testing.T) {
	w := newWorld(t)
	must(t, w.fill("stock", 0))
	l := &link{fault: func(is string, n int) fate { return fateOf(is == "TransactWriteItems" && n == 1, delayed) }}
	s := dynamostore.New(via(w.url, l, func(o *dynamodb.Options) { o.Retryer = eager() }), nil)
	runs := 0
	_, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		if runs++; runs == 2 {
			must(t, w.fill("stock", 1))
			for _, answer := range l.deliver(t) {
				if strings.HasPrefix(answer, "200") {
					t.Errorf("the late commit was applied")
				}
			}
		}
		return "sold", w.sell(tx, "stock")
	})
	if err != nil || runs != 2 {
		t.Errorf("DoTx returned %v after %d runs", err, runs)
	}
	if n, err := w.count(t.Context(), "stock"); err != nil || n != 0 {
		t.Errorf("the stock is %d, %v", n, err)
	}
}

// The caller's context ends, and the commit does not.
func TestACommitOutlivesItsCaller(t *testing.T) {
	w := newWorld(t)
	ctx, leave := context.WithCancel(t.Context())
	l := &link{fault: func(is string, _ int) fate {
		if is == "TransactWriteItems" {
			leave()
		}
		return passes
	}}
	got, err := once.DoTx(ctx, w.via(l, nil), pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
		return "paid", w.effect(tx, "row")
	})
	if err != nil || got != "paid" {
		t.Errorf("DoTx returned %q, %v", got, err)
	}
	w.answers(t, "paid", 1)
}

// The same for a transaction that the caller ends.
func TestACommitOfTheCallerOutlivesIt(t *testing.T) {
	w := newWorld(t)
	ctx, leave := context.WithCancel(t.Context())
	l := &link{fault: func(is string, _ int) fate {
		if is == "TransactWriteItems" {
			leave()
		}
		return passes
	}}
	tx := w.via(l, nil).Begin()
	must(t, w.effect(tx, "row"))
	if err := tx.Commit(ctx); err != nil {
		t.Errorf("Commit returned %v", err)
	}
	if n, err := w.count(t.Context(), "row"); err != nil || n != 1 {
		t.Errorf("there were %d effects, %v", n, err)
	}
}

// A service that does not answer a commit leaves it unknown, in bounded time.
func TestACommitIsBounded(t *testing.T) {
	w := newWorld(t)
	silent := new(hanging)
	s := dynamostore.New(dial(w.url, func(o *dynamodb.Options) { o.HTTPClient, o.Retryer = silent, aws.NopRetryer{} }),
		&dynamostore.Options{CommitTimeout: 50 * time.Millisecond})
	tx := s.Begin()
	must(t, w.effect(tx, "row"))
	if err := tx.Commit(t.Context()); !errors.Is(err, once.ErrOutcomeUnknown) || silent.unbounded {
		t.Errorf("Commit returned %v, unbounded: %v", err, silent.unbounded)
	}
}

// hanging does not answer requests that are bounded.
type hanging struct{ unbounded bool }

func (h *hanging) Do(r *http.Request) (*http.Response, error) {
	if _, bounded := r.Context().Deadline(); !bounded {
		h.unbounded = true
		return nil, errLost
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Throttling is waited for, and conflicts of transactions are as well.
func TestRefusalsThatPass(t *testing.T) {
	for _, code := range []string{"ProvisionedThroughputExceededException", "ThrottlingException", "TransactionConflictException"} {
		for _, first := range []bool{false, true} {
			w := newWorld(t)
			s := w.via(&link{fault: func(string, int) fate { return passes }}, &dynamostore.Options{ClaimFirst: first})
			w.Refuse(code, code, code)
			got, err := once.DoTx(t.Context(), s, pay.For("1"), func(_ context.Context, tx *dynamostore.Tx) (string, error) {
				return "paid", w.effect(tx, "row")
			})
			if err != nil || got != "paid" {
				t.Errorf("%s, then DoTx returned %q, %v", code, got, err)
			}
			w.answers(t, "paid", 1)
			w.Refuse(code, code, code)
			rec, err := s.Claim(t.Context(), once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "pay", ID: "3"}}, Lease: time.Hour})
			if err != nil || rec.Attempt != 1 {
				t.Errorf("%s, then Claim returned %v, %v", code, rec, err)
			}
			w.Refuse(code, code, code)
			got, err = once.Do(t.Context(), s, pay.For("2"), func(context.Context, once.Key) (string, error) { return "paid", nil })
			if err != nil || got != "paid" {
				t.Errorf("%s, then Do returned %q, %v", code, got, err)
			}
		}
	}
}

// A caller who cannot wait any longer learns why.
func TestThrottlingEndsWithTheCaller(t *testing.T) {
	w := newWorld(t)
	for range 1000 {
		w.Refuse("ProvisionedThroughputExceededException")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := w.store.Claim(ctx, once.ClaimRequest{Fence: once.Fence{Key: once.Key{Operation: "pay", ID: "1"}, Owner: [16]byte{1}}, Lease: time.Hour})
	if err == nil || time.Since(deadlineOf(ctx)) > time.Minute {
		t.Errorf("Claim returned %v, %v after the deadline", err, time.Since(deadlineOf(ctx)))
	}
}

func deadlineOf(ctx context.Context) time.Time {
	at, _ := ctx.Deadline()
	return at
}
