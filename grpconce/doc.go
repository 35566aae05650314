// Package grpconce sends an idempotency key as metadata of gRPC calls, for
// servers and clients. The client sends the same key with all attempts of a
// call. The server runs the first, and replays its response to the others.
//
//	server := grpc.NewServer(grpc.UnaryInterceptor(grpconce.Server(store, tenantOf, nil)))
//	conn, err := grpc.NewClient(target, grpc.WithUnaryInterceptor(grpconce.Client(nil)))
//
// [Server] guards handlers with effects anywhere, by [once.Do]. [ServerTx] guards
// handlers that write to the database of the store, by [once.DoTx]: rows and
// response are one commit. Both promise what these functions promise.
//
// The key is one value of the metadata "idempotency-key": 1 to 255 printable
// ASCII characters without a space at either end. Callers cannot see each
// other's keys, because a key belongs to the caller that a mandatory function
// returns. A call without a key is not guarded, unless [Options].Required says
// that it needs one.
//
// # Errors of the server
//
// Every error of the server interceptor has an [errdetails.ErrorInfo] with the
// domain [Domain] and a reason, which [ReasonOf] returns. If a later attempt may
// succeed, it also has an [errdetails.RetryInfo].
//
//	first call                    the handler's response
//	answered before               the same response, with the header idempotent-replayed: true
//	no key, and Required          InvalidArgument     ReasonKeyMissing
//	key malformed, or sent twice  InvalidArgument     ReasonKeyInvalid
//	caller not known              Unauthenticated     ReasonCallerUnknown
//	request not comparable        Internal            ReasonMisconfigured
//	same key, other request       FailedPrecondition  ReasonMismatch
//	still running                 Aborted             ReasonInProgress       RetryInfo: the rest of the lease
//	outcome unknown               Aborted             ReasonOutcomeUnknown   RetryInfo
//	outcome unknown, and parked   Aborted             ReasonOutcomeUnknown   RetryInfo: a minute; metadata parked: true
//	transaction kept conflicting  Aborted             ReasonConflict         RetryInfo; nothing was committed
//	done, response forgotten      FailedPrecondition  ReasonExpired
//	done, response not kept       FailedPrecondition  ReasonResponseNotKept  metadata outcome: done or refused
//	response too large, ServerTx  Internal            ReasonResponseTooLarge nothing was committed
//	stored record damaged         DataLoss            ReasonRecordDamaged
//	store not reached             Unavailable         ReasonStoreUnavailable RetryInfo; Server did not run the handler
//	no room for a new key         ResourceExhausted   ReasonNoRoom           RetryInfo: see Options.Admit
//	a stream, see RefuseStreams   Unimplemented       ReasonStream           nothing was done
//	an interceptor in another     Internal            ReasonMisconfigured    nothing was done
//
// A mismatch is FailedPrecondition, because the request is wrong only in the
// state of its key. A call that waits for the first one longer than
// [once.Policy].Wait fails as still running.
//
// # What is recorded
//
// OK is always recorded. So are the codes that a handler would return at any
// time: InvalidArgument, NotFound, AlreadyExists, PermissionDenied,
// FailedPrecondition, OutOfRange and Unimplemented. In ServerTx, a recorded
// error rolls the rows back.
//
// After Canceled, DeadlineExceeded, ResourceExhausted, Aborted, Unavailable,
// Internal, Unknown, DataLoss and Unauthenticated, the outcome is unknown to
// Server. That includes Unavailable and ResourceExhausted, because handlers pass
// them on from other services, and gRPC makes them for replies that were lost or
// too large. Nothing runs again until the outcome is determined (see
// [Options].OnUnknown). ServerTx rolls back instead, and frees the key.
//
// A handler can override this: an error wrapped by [once.NotDone] frees the key,
// and an error that wraps [once.ErrRejected] is recorded. [Options].Decide
// overrides it by status. The status in the tree of an error is the response,
// and the text of the errors that wrap it stays on the server. A panic passes
// through. It leaves the outcome unknown, or rolls back.
//
// FailedPrecondition is not recorded if it has a reason of this package: what
// another guarded service reports about its key does not mean that nothing
// happened there.
//
// Put interceptors that authenticate, authorize, limit rates or recover from
// panics outside of this one. Inside, a replay does not pass them, and their
// Unauthenticated or ResourceExhausted counts as the handler's, so the key is
// parked.
//
// Only the message or the status is recorded, as protocol buffers. Headers and
// trailers of the handler reach the first call only. A replayed message is
// decoded by the name of its type. A server that no longer links the type
// returns ReasonResponseNotKept and does not run the handler again.
//
// # Limits
//
// Streams are not guarded: what was sent on a stream cannot be taken back, or
// replayed as one response. Guard the handling of each message, with once.Do and
// a key in the message. [RefuseStreams] refuses streams that bring a key or need
// one, instead of running them unguarded.
//
// A client that disconnects, or whose deadline passes, stops waiting for a key.
// It does not stop a handler that has claimed the key. The handler keeps the
// values of its context and loses its deadline. It ends when the lease is lost
// or after [Options].Timeout. A duplicate that ServerTx has let into the handler
// speculatively waits for [once.Policy].Wait. If a server may be stopped with
// Stop, create it with grpc.WaitForHandlers(true).
//
// Two requests are equal if their methods and their deterministic encodings
// are. Protocol buffers promise such an encoding for one build only. If builds
// differ, a repeat fails as a mismatch and does not run. [Options].Fingerprint
// replaces the encoding.
//
// The retries of gRPC, set by a service config, happen below the client
// interceptor and send the same key.
//
// # Compatibility
//
// Until version 1.0, a minor release may change this package; the changelog
// describes how to adapt. Reasons and recorded data stay readable.
package grpconce
