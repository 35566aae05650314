// Package httponce implements the Idempotency-Key header for HTTP servers and
// clients.
//
// On the server, [Handler] or [Middleware] claims the key of a request before
// the handler runs, records its response, and replays it to every repeat.
// [HandlerTx] gives the handler a transaction: key, rows and response are one
// commit.
//
//	mux.Handle("POST /payments", httponce.Handler(store, tenantOf, payments, nil))
//	mux.Handle("POST /payments", httponce.HandlerTx(store, tenantOf, pay, nil))
//
// On the client, [Transport] retries requests, and gives all attempts of a
// request the same key.
//
// # What a repeat gets
//
//	a required key is missing, or a key is malformed    400
//	no caller                                           401
//	a body over MaxBody, before any claim               413
//	the first request                                   the handler's response, recorded
//	a repeat, done                                      the same status, allowed headers and body; Idempotent-Replayed: true
//	a repeat, still running                             waits for Policy.Wait, then 409 with Retry-After;
//	                                                    409 at once if Limits.Waiting others wait
//	the same key with another request                   422
//	a repeat after KeepOutcome, or of a response too large to be kept   410
//	a repeat of a request whose outcome is unknown      409 with its own problem type, and Retry-After
//	a caller over its limits or quota                   429 with Retry-After, for new keys only
//	a body that was read before the guard               500, and the handler does not run; see [WatchBody]
//	the store cannot be reached                         503 with Retry-After; the handler does not run
//
// Errors are problem documents (RFC 9457) whose type ends in the name of the
// case, such as "#in-progress".
//
// # Which responses are recorded
//
// Responses with 2xx, 3xx and 4xx are recorded, except 307, 308, 408, 425 and
// 429. After these nothing happened, so the key is free again: a client follows
// a 307 or 308 with the same request and key. That also holds for what an
// [http.ServeMux] inside the guard answers by itself: redirects, and 404 and 405
// without a route. After any other status, or a panic, the outcome is unknown:
// the caller gets that response, and repeats get 409 until the outcome is
// determined (see [once.Operation]). [Options.Decide] changes this by status,
// and [NotDone] for one request.
//
// In [HandlerTx] no outcome is unknown. A response that is not recorded rolls
// everything back. A recorded response of 400 or more rolls back the rows but
// keeps the response.
//
// # Limits
//
// Handler passes requests with a safe method (GET, HEAD, OPTIONS, TRACE)
// through unguarded. The request is read before the key is claimed, so request
// bodies are not streamed. Repeats that wait share their buffered body.
//
// A response is sent once it is recorded, unless the handler flushes it or it
// is too large to be recorded; then it is streamed as by net/http. If a
// response is too large, hijacked, or sealed with a secret that is gone, the
// key remembers that the request was done, and repeats get 410.
package httponce
