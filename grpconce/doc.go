// Package grpconce makes a gRPC call happen once: the Idempotency-Key on both ends, as metadata. The client sends one key
// with all attempts of a call, the server runs the first, and answers the others with what it answered then.
//
//	server := grpc.NewServer(grpc.UnaryInterceptor(grpconce.Server(store, tenantOf, nil)))
//	conn, err := grpc.NewClient(target, grpc.WithUnaryInterceptor(grpconce.Client(nil)))
//
// [Server] guards handlers whose effects are anywhere, by [once.Do]. [ServerTx] guards handlers whose effects are rows in the
// database of the store, by [once.DoTx]: rows and response are one commit. Both promise what those two promise, no more.
//
// The key is one value of the metadata "idempotency-key": 1 to 255 printable ASCII characters, no space at either end. It
// belongs to the caller, whom a mandatory function names; callers cannot meet each other's keys. A call without one goes
// straight through, unless [Options].Required.
//
// # What the server answers
//
// Every answer of the server interceptor itself carries an [errdetails.ErrorInfo] with the domain [Domain] and a reason, which
// [ReasonOf] finds, and where a later attempt makes sense an [errdetails.RetryInfo].
//
//	first call                    the handler's answer
//	answered before               the same answer, with the header idempotent-replayed: true
//	no key, and Required          InvalidArgument     ReasonKeyMissing
//	key malformed, or sent twice  InvalidArgument     ReasonKeyInvalid
//	caller not known              Unauthenticated     ReasonCallerUnknown
//	request not comparable        Internal            ReasonMisconfigured
//	same key, other request       FailedPrecondition  ReasonMismatch
//	still running                 Aborted             ReasonInProgress       RetryInfo: what is left of its lease
//	outcome unknown               Aborted             ReasonOutcomeUnknown   RetryInfo
//	outcome unknown, and parked   Aborted             ReasonOutcomeUnknown   RetryInfo: a minute; metadata parked: true
//	transaction kept conflicting  Aborted             ReasonConflict         RetryInfo: nothing was committed
//	done, response forgotten      FailedPrecondition  ReasonExpired
//	done, response not kept       FailedPrecondition  ReasonResponseNotKept  metadata outcome: done or refused
//	response too large, ServerTx  Internal            ReasonResponseTooLarge nothing was committed
//	stored record damaged         DataLoss            ReasonRecordDamaged
//	store not reached             Unavailable         ReasonStoreUnavailable RetryInfo: Server has not run the handler
//	no room for a new key         ResourceExhausted   ReasonNoRoom           RetryInfo: see Options.Admit
//
// A mismatch is FailedPrecondition, because it is the record that makes the request wrong: with another key it is right.
// A call that waits for the first one longer than [once.Policy].Wait is told that it is still running.
//
// # What is recorded
//
// An answer OK, always, and the statuses of a handler that would be the same at any time: InvalidArgument, NotFound,
// AlreadyExists, PermissionDenied, FailedPrecondition, OutOfRange and Unimplemented. In ServerTx a recorded refusal rolls the
// rows back. After Canceled, DeadlineExceeded, ResourceExhausted, Aborted, Unavailable, Internal, Unknown, DataLoss and
// Unauthenticated, Server does not know what has happened before, Unavailable and ResourceExhausted included: a handler passes
// them on from others, and gRPC makes them for replies that were lost or too large. Nothing is run again before somebody
// finds out, see [Options].OnUnknown. ServerTx rolls back instead, and frees the key.
//
// A handler that knows better says so: [once.NotDone] of its error frees the key, an error with [once.ErrRejected] in it is
// recorded. [Options].Decide changes the rule by status. The status in an error's tree is the answer; text of errors around
// it stays on the server. A panic passes on, and leaves the outcome unknown, or rolls back.
//
// FailedPrecondition is recorded unless it has a reason of this package: what another guarded service says of its key does not
// say that nothing happened there.
//
// Put interceptors that authenticate, authorize, limit rates or recover outside of this one. Inside, a replay does not pass
// them, and their Unauthenticated or ResourceExhausted counts as the handler's: nobody knows, so the key is parked.
//
// Only the message or the status is recorded, as protocol buffers. Headers and trailers that a handler sets reach the first
// call only. Messages are found by name when they are replayed: a server that no longer links a type answers
// ReasonResponseNotKept, never by running again.
//
// # Limits
//
// Streams are not guarded and there is no interceptor for them: what was sent of a stream cannot be taken back or replayed
// as one answer. Guard what the handler does for each message, with once.Do and a key in the message.
//
// A client that hangs up, or whose deadline passes, ends its wait for a key, but not a handler that has claimed it: that one
// keeps the values of its context, loses its deadline, and ends with a lost lease or [Options].Timeout. A duplicate that a store
// of ServerTx has let into the handler in vain waits out [once.Policy].Wait. A server that stops
// with Stop should be made with grpc.WaitForHandlers(true).
//
// Two requests are the same if method and deterministic encoding are. Protocol buffers promise such an encoding for one
// build only: should builds differ, a repeat is refused as a mismatch, never run. [Options].Fingerprint compares what you choose.
//
// gRPC's own retries, set by a service config, happen below the client interceptor and send the same key again.
//
// # Compatibility
//
// Until version 1.0 a minor release may change this package; the changelog says how to follow. Reasons and what is stored stay.
package grpconce
