package grpconce

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/backoff"
	"github.com/effectively-once/once/internal/name"
)

// ClientOptions are the options of a client. A nil *ClientOptions and the zero value work.
type ClientOptions struct {
	// Methods says which methods, like "/shop.Orders/Place", get a key and are repeated. A server that takes no notice of
	// keys runs a repeated call twice: leave its methods out. Default: all.
	Methods func(fullMethod string) bool

	Attempts int           // of one call; default 5. 1: no repeats
	Within   time.Duration // no attempt begins later than this after the first; default 1 minute: longer than the default lease of a server and its wait
	First    time.Duration // the wait before the second attempt, which doubles from one to the next; default 100 ms
	Limit    time.Duration // no wait is longer, unless the server asks for it; default 5 seconds
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

// WithKey names the call made with the context, for example by the id of the order that it is about. A context that
// is used for two calls makes one of them.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, outgoingKey{}, key)
}

// Client returns an interceptor that gives a call one key and repeats it with that key: after Unavailable, and after
// Aborted and ResourceExhausted with a RetryInfo, not before the time that it gives. Between attempts it waits, ever
// longer and with jitter. It stops when attempts, time or the context are used up, and returns the last error.
//
// The key is the one of [WithKey]; else what is in the outgoing metadata already; else, in work guarded by once, the key
// of its claim; else random. In guarded work, metadata that a handler copies from what came in does not name the call.
// Work that makes several calls names each with WithKey, for example by a step of its key: calls with one key are one
// call. A key that is random is lost in a crash, and with the error that is returned, after which calling again is
// another call: name what must survive.
//
// Whether an answer was given before, tells [Replayed] from the header that grpc.Header gets.
func Client(o *ClientOptions) grpc.UnaryClientInterceptor {
	c := o.withDefaults()
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if c.Methods != nil && !c.Methods(method) {
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		ctx, err := named(ctx)
		if err != nil {
			return refuse(ReasonKeyInvalid, err.Error(), 0, nil)
		}
		return c.repeat(ctx, func() error { return invoke(ctx, method, req, reply, conn, opts...) })
	}
}

// named puts the key into the outgoing metadata.
func named(ctx context.Context) (context.Context, error) {
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	key, given := ctx.Value(outgoingKey{}).(string)
	switch claim, claimed := once.ClaimFrom(ctx); {
	case given:
	case len(md.Get(KeyMetadata)) > 0 && !(claimed && passedOn(ctx, md)):
		return ctx, nil
	case claimed:
		key = claim.Key.String()
	default:
		key = name.Format(name.Token())
	}
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(KeyMetadata, key)
	return metadata.NewOutgoingContext(ctx, md), checkKey(key)
}

// passedOn reports whether the key in md is the one that a server was called with, whose handler copies all metadata. That
// one names the call of one of many callers, who are all one caller to the next server.
func passedOn(ctx context.Context, md metadata.MD) bool {
	return slices.Equal(md.Get(KeyMetadata), metadata.ValueFromIncomingContext(ctx, KeyMetadata))
}

func (c ClientOptions) repeat(ctx context.Context, try func() error) error {
	begun := time.Now()
	pause := &backoff.Backoff{First: c.First, Limit: c.Limit}
	for attempts := 1; ; attempts++ {
		err := try()
		asked, may := mayRepeat(err)
		if !may || attempts >= c.Attempts {
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

// mayRepeat reports whether the same call may succeed later, and how long the server wants to be left alone before it.
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
