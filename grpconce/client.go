package grpconce

import (
	"cmp"
	"context"
	"crypto/sha256"
	"reflect"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/name"
	"github.com/effectively-once/once/internal/resent"
)

// ClientOptions configures a client interceptor. A nil *ClientOptions and the
// zero value are valid.
type ClientOptions struct {
	// Methods reports whether calls of a method, such as "/shop.Orders/Place",
	// get a key and are retried. A server that ignores keys runs a retried call
	// twice, so exclude its methods. Default: all methods.
	Methods func(fullMethod string) bool

	Attempts int           // the maximum number of attempts of a call, default 5
	Within   time.Duration // how long after the first attempt the last may start; default 1 minute, which is longer than the default lease of a server plus its Wait
	First    time.Duration // the delay before the second attempt; it doubles with each attempt; default 100 ms
	Limit    time.Duration // the longest delay that the server has not asked for; default 5 seconds
}

func (o *ClientOptions) withDefaults() ClientOptions {
	var ready ClientOptions
	if o != nil {
		ready = *o
	}
	ready.Attempts = cmp.Or(ready.Attempts, 5)
	ready.Within = cmp.Or(ready.Within, time.Minute)
	ready.First = cmp.Or(ready.First, 100*time.Millisecond)
	ready.Limit = cmp.Or(ready.Limit, 5*time.Second)
	if ready.Attempts < 0 || min(ready.Within, ready.First, ready.Limit) < 0 {
		panic("grpconce: ClientOptions are not negative")
	}
	return ready
}

type outgoingKey struct{}

// WithKey returns a context whose call uses this key, such as the ID of the
// order that the call is about. Two calls with the same context are one call to
// the server.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, outgoingKey{}, key)
}

// Client returns an interceptor that gives all attempts of a call the same key.
// It retries after Unavailable, and after Aborted and ResourceExhausted with a
// RetryInfo, no earlier than after its delay. The delay between attempts grows,
// with jitter. Client returns the last error when the attempts, the time or the
// context end.
//
// Client takes the key from the first of these that exists:
//
//   - [WithKey].
//   - the outgoing metadata. In guarded work, metadata that a handler has copied
//     from its incoming call does not count.
//   - the claim that the call is made under (see [once.ClaimFrom]).
//   - a random key. If an interceptor outside sends the same call again after it
//     has failed, the key is that of before.
//
// The same call is one of the same method with the same message: the same
// pointer, with equal content. A call has failed with Unavailable, Aborted,
// ResourceExhausted, DeadlineExceeded, Canceled, Internal, Unknown or DataLoss.
// Retries that make a new message for each attempt need WithKey outside of them.
//
// Work that makes several calls must name each with WithKey, for example by a
// step of its key, because calls with the same key are one call. A random key is
// lost in a crash, and calling again with another message is another call.
//
// [Replayed] reports whether a response was replayed.
func Client(o *ClientOptions) grpc.UnaryClientInterceptor {
	c, failed := o.withDefaults(), new(failures)
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if c.Methods != nil && !c.Methods(method) {
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		call := outgoing{method, req}
		ctx, random, err := named(ctx, func() string { return failed.keyOf(call) })
		if err != nil {
			return refuse(ReasonKeyInvalid, err.Error(), 0, nil)
		}
		err = c.repeat(ctx, func() error { return invoke(ctx, method, req, reply, conn, opts...) })
		if random != "" {
			failed.ended(call, random, err)
		}
		return err
	}
}

// outgoing is a call by what all its attempts share.
type outgoing struct {
	method  string
	message any
}

// failures are the random keys of calls that have failed. An interceptor outside
// may send such a call again: it must not get another key.
type failures struct{ keys resent.Keys }

// keyOf returns the key of a call that has failed, or a random one.
func (f *failures) keyOf(call outgoing) string {
	if call.isComparable() {
		if key, ok := f.keys.Take(call, call.print); ok {
			return key
		}
	}
	return name.Format(name.Token())
}

// ended records whether a call with a random key has failed.
func (f *failures) ended(call outgoing, key string, err error) {
	if !call.isComparable() {
		return
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Aborted, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown, codes.DataLoss:
		f.keys.Failed(call, key, call.print())
	default:
		f.keys.Done(call, key)
	}
}

// isComparable reports whether the message is a pointer.
func (c outgoing) isComparable() bool { return reflect.ValueOf(c.message).Kind() == reflect.Pointer }

// print returns a digest of the message.
func (c outgoing) print() (sum resent.Print) {
	message, err := messageOf(c.message)
	if err != nil {
		return sum
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return sum
	}
	return sha256.Sum256(text)
}

// named adds the key to the outgoing metadata. It calls newKey if the key is to
// be random, and returns it.
func named(ctx context.Context, newKey func() string) (_ context.Context, random string, _ error) {
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	key, given := ctx.Value(outgoingKey{}).(string)
	switch claim, claimed := once.ClaimFrom(ctx); {
	case given:
	case len(md.Get(KeyMetadata)) > 0 && !(claimed && passedOn(ctx, md)):
		return ctx, "", nil
	case claimed:
		key = claim.Key.String()
	default:
		random = newKey()
		key = random
	}
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(KeyMetadata, key)
	return metadata.NewOutgoingContext(ctx, md), random, checkKey(key)
}

// passedOn reports whether the key in md is that of the incoming call, because a
// handler copies all metadata. To the next server this process is one caller, so
// the keys of its own callers would collide.
func passedOn(ctx context.Context, md metadata.MD) bool {
	return slices.Equal(md.Get(KeyMetadata), metadata.ValueFromIncomingContext(ctx, KeyMetadata))
}

// repeat calls try until it succeeds or must not be retried.
func (c ClientOptions) repeat(ctx context.Context, try func() error) error {
	begun := time.Now()
	pause := &backoff.Backoff{First: c.First, Limit: c.Limit}
	for attempt := 1; ; attempt++ {
		err := try()
		asked, may := mayRepeat(err)
		if !may || attempt >= c.Attempts {
			return err
		}
		left, wait := c.Within-time.Since(begun), pause.Next()
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, time.Until(deadline))
		}
		if asked > left-wait || backoff.Sleep(ctx, asked+wait) != nil { // a sum may overflow
			return err
		}
	}
}

// mayRepeat reports whether the same call may succeed later, and the delay that
// the server asks for.
func mayRepeat(err error) (wait time.Duration, ok bool) {
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if info, is := detail.(*errdetails.RetryInfo); is {
			wait, ok = max(info.RetryDelay.AsDuration(), 0), true
		}
	}
	switch s.Code() {
	case codes.Unavailable:
		return wait, true
	case codes.Aborted, codes.ResourceExhausted:
		return wait, ok
	default:
		return 0, false
	}
}
