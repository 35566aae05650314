package once

import (
	"errors"
	"net"
	"syscall"
)

// IsDialError reports whether err says that a connection could not be made: the name was not found, the connection was
// refused, or it timed out while it was being made. Then a call that made one attempt on a new connection has sent nothing,
// and its work may return [NotDone] of err:
//
//	if once.IsDialError(err) {
//		return charge, once.NotDone(err)
//	}
//
// It looks at the error alone, and cannot know what happened before it. It does not show that nothing was sent
//
//   - if the client makes several attempts by itself and returns the error of the last one. So does net/http: it sends a
//     request again that failed on a kept connection, if the request has no body or a GetBody, and its method is
//     idempotent or it has the header Idempotency-Key. Set GetBody to nil to send a body once only;
//   - if the client follows redirects, and could not connect to where the answer to the request has sent it. A client
//     of net/http follows them, unless its CheckRedirect returns http.ErrUseLastResponse;
//   - if the work makes several calls, of which an earlier one may have had an effect;
//   - if the error comes from another host: a proxy or server that reports, with the same types, that it could not reach the next.
//
// An error that wraps several is a dial error only if all of them are. What [Do], [DoTx] and [InTx] return of a failure of
// theirs is none: it may be the store that could not be reached, after the work was done. Errors of a TLS handshake are not, although they
// come before a request, too. A client for gRPC returns a status instead; see docs/effects.md.
func IsDialError(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case *net.OpError:
		if e.Op == "proxyconnect" { // net/http, to a proxy
			return IsDialError(e.Err)
		}
		return e.Op == "dial"
	case *net.DNSError:
		return true
	case syscall.Errno:
		return e == syscall.ECONNREFUSED
	case *failure: // the cause of another may be that the store could not be reached, after the work was done
		mark := e.key == Key{} && (e.kind == errNotDone || e.kind == errPermanent || e.kind == errRetryAfter)
		return mark && IsDialError(e.cause)
	case interface{ Unwrap() []error }:
		all := e.Unwrap()
		for _, one := range all {
			if !IsDialError(one) {
				return false
			}
		}
		return len(all) > 0
	}
	return IsDialError(errors.Unwrap(err))
}
