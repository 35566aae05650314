// Package httponce gives requests of HTTP an Idempotency-Key, on both ends.
//
// On the server, [Handler] or [Middleware] claims the key of a request before the handler runs, records its response, and
// replays that to every repeat. [HandlerTx] hands the handler a transaction: key, rows and response are one commit.
//
//	mux.Handle("POST /payments", httponce.Handler(store, tenantOf, payments, nil))
//	mux.Handle("POST /payments", httponce.HandlerTx(store, tenantOf, pay, nil))
//
// On the client, [Transport] gives each request one key, the same for all its attempts, and makes those attempts.
//
// # What a repeat gets
//
//	no key where it is required, or a malformed one    400
//	no caller                                           401
//	a body over MaxBody, before any claim               413
//	the first request                                   the handler's response, recorded
//	a repeat, done                                      the same status, allowed headers and body; Idempotent-Replayed: true
//	a repeat, still running                             waits as long as Policy.Wait says, then 409 with Retry-After;
//	                                                    at once if Limits.Waiting others wait
//	the same key with another request                   422
//	a repeat after KeepOutcome, or of a response too large to be kept   410
//	a repeat of a request whose outcome is unknown      409 with a type of its own, and Retry-After
//	a caller over its limits, or without room           429 with Retry-After, for new keys only
//	a body that something has read before               500, and the handler does not run; see [WatchBody]
//	the store cannot be reached                         503 with Retry-After; the handler does not run
//
// Errors are problem documents (RFC 9457) whose type ends in the name of the case, for example "#in-progress".
//
// # Which responses are recorded
//
// 2xx, 3xx and 4xx, but for 408, 425 and 429. After 408, 425 and 429 nothing happened, so the key is free again. After any
// other status, or a panic, nobody knows what happened: the caller gets that response, and repeats get 409 until
// somebody finds out (see [once.Operation]). [Options.Decide] changes that by status, and [NotDone] for one request. In
// [HandlerTx] nothing is unknown: a response that is not recorded rolls everything back, and so does one of 400 and
// more, of which only the answer is recorded.
//
// # Limits
//
// Handler passes requests with a safe method (GET, HEAD, OPTIONS, TRACE) on unguarded. The request is read before the key is
// claimed, so a request body is not streamed, and repeats that wait share what is held of it. A response is sent when it is recorded, unless the handler flushes it or
// it is larger than what is recorded: then it is sent as it comes, as net/http does. Of a response that is larger,
// hijacked, or sealed with a key that is gone, the effect is remembered and the response is not, and repeats are told
// so.
package httponce
