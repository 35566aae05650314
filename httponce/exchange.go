package httponce

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/admission"
	"github.com/effectively-once/once/internal/errtree"
	"github.com/effectively-once/once/internal/logs"
)

// exchange is a guarded request and its response. Its methods are in the order
// in which a request passes them.
type exchange struct {
	*settings
	w         http.ResponseWriter
	r         *http.Request
	mux       *http.ServeMux // the guarded handler, if it is one
	key       once.Key
	place     place // in the limits of the caller
	body      requestBody
	mark      [sha256.Size]byte // digest of what repeats must have in common
	leaveRoom func(kept bool)   // set by Options.Admit
	progress  admission.Progress
	run       handlerRun
	before    written // what w told before the handler ran
}

// read reads the request. Its error is the reason why the request cannot be
// guarded.
func (x *exchange) read() error {
	scope, err := x.caller(x.r)
	if err != nil || scope == "" {
		return problemCaller
	}
	x.key = once.Key{Scope: scope, Operation: x.Operation}
	if x.lifetime != nil {
		x.w.Header()[LifetimeHeader] = x.lifetime
	}
	id, err := x.readKey()
	if err != nil {
		return err
	}
	x.key.ID = id
	if err := x.key.Validate(); err != nil {
		x.log("the caller has an impossible name", "", err)
		return problemSetUp
	}
	if err := x.checkNesting(); err != nil {
		return err
	}
	if err := x.enterLimits(); err != nil {
		return err
	}
	if err := x.readBody(); err != nil {
		return err
	}
	return x.digest()
}

// around is the key of a context for the exchange that its handler serves.
type around struct{}

// enter returns the context for the handler.
func (x *exchange) enter(ctx context.Context) context.Context {
	return context.WithValue(ctx, around{}, x)
}

// checkNesting returns an error if a guard outside of this one has claimed the
// same key: it would wait for itself. The outer guard records nothing.
func (x *exchange) checkNesting() error {
	outer, ok := x.r.Context().Value(around{}).(*exchange)
	if !ok || outer.key != x.key || outer.store.Options() != x.store.Options() || outer.run.rec.over.Load() {
		return nil
	}
	outer.run.rec.notDone.Store(true)
	x.log("a guard is inside of another with the same Operation and caller: use one of them, such as Use or With of a router", x.Operation, nil)
	return problemSetUp
}

func (x *exchange) readKey() (id string, err error) {
	values, sent := x.r.Header[KeyHeader]
	if !sent {
		return x.deriveKey()
	}
	id, err = parseKey(values)
	if err == nil && x.CheckKey != nil {
		err = errtree.Tame(x.CheckKey(id))
	}
	if err != nil {
		return "", problemMalformed.because(err.Error())
	}
	return id, nil
}

// deriveKey makes a key for a request that has none, as Options.Key says.
func (x *exchange) deriveKey() (string, error) {
	if x.Key == nil {
		return "", problemMissing
	}
	if err := x.readBody(); err != nil {
		return "", err
	}
	seed, err := x.Key(x.r, x.body.bytes())
	switch {
	case err != nil:
		return "", problemBody.because(errtree.Tame(err).Error())
	case seed == "":
		return "", problemMissing
	}
	path, _ := targetOf(x.r)
	sum := sha256.Sum256(appendParts(nil, "a derived key", x.r.Method, path, x.routedHost(), seed))
	return "derived-" + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// enterLimits counts the request in the limits of its caller. It comes before
// the body, so that a refused request makes the server hold nothing.
func (x *exchange) enterLimits() (err error) {
	if x.limiter == nil {
		return nil
	}
	var wait time.Duration
	x.place, wait = x.limiter.enter(x.key.Scope, x.key.ID, time.Now())
	if x.place.standing == overLimit {
		isKnown := func(rec once.Record) bool { return rec.Status != once.Absent }
		if err := admission.RequireRecord(x.r.Context(), x.store, x.key, wait, isKnown); err != nil {
			return err
		}
		x.place.enterKnown()
	}
	if x.place.standing == tooMany {
		return problemInProgress.retried(whenOpen)
	}
	return nil
}

func (x *exchange) readBody() error {
	if x.body.taken { // for its key
		return nil
	}
	x.body = requestBody{all: x.bodies, key: x.key}
	err := x.body.read(x.r, x.MaxBody, x.Fingerprint != nil)
	if err == nil {
		return nil
	}
	var large *tooLargeError
	switch {
	case errors.As(err, &large):
		if large.unread {
			x.leaveUnread()
		}
		return problemTooLarge.because(fmt.Sprintf("At most %d bytes are taken. Nothing was done.", large.limit))
	case errors.Is(err, errNotWhole):
		x.log("the body of a request is not whole", x.Operation, err)
		return problemNotWhole
	}
	return problemBody
}

// admit asks Options.Admit for room for the key.
func (x *exchange) admit() (err error) {
	if x.leaveRoom, err = admission.Enter(x.r.Context(), x.store, x.Admit, x.key); err != nil {
		x.leave(err)
	}
	return err
}

// leave ends what admit and enterLimits began. err is the error that the
// request ended with.
func (x *exchange) leave(err error) {
	left := x.progress.LeftRecord(x.r.Context(), err)
	x.leaveRoom(left)
	x.place.leave(x.progress.Phase < admission.Entered && !left)
}

// work returns the unit of work that the request asks for, with one of its
// marks.
func (x *exchange) work(mark []byte) once.Work[*recording] {
	return x.op.For(x.key.ID).In(x.key.Scope).Input(mark).Report(&x.progress.Report)
}

// decided returns the end of a run of the handler in the form that once takes:
// the response, and an error unless it is to be recorded.
func (x *exchange) decided() (*recording, error) {
	rec := x.run.rec
	answer := rec.response(x.headers)
	if x.Ring.seals() {
		answer.key = x.key.UUID()
	}
	if rec.isPartial() && x.r.Method != http.MethodHead {
		answer.body, answer.noBody = nil, true
	}
	switch d := x.decide(rec.status); {
	case rec.notDone.Load(), d == Release:
		return answer, once.NotDone(errNotRecorded)
	case d == Unknown:
		return answer, errNotRecorded
	}
	return answer, nil
}

// decide returns the decision of Options.Decide, or the default.
func (x *exchange) decide(status int) Decision {
	if x.Decide != nil {
		if d := x.Decide(x.r, status); d != ByStatus {
			return d
		}
	}
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return Release
	case status == http.StatusTemporaryRedirect, status == http.StatusPermanentRedirect:
		return Release // the client sends the same request with the same key elsewhere
	case status >= 300 && status < 500 && x.isRouting():
		return Release
	case status >= 500:
		return Unknown
	}
	return Record
}

// isRouting reports whether an [http.ServeMux] inside the guard has responded by
// itself, because it found no route or redirects.
func (x *exchange) isRouting() bool {
	switch {
	case x.run.req.Pattern == "":
		return x.mux != nil || x.r.Pattern != "" // a mux has been asked, and has overwritten the pattern
	case x.mux == nil:
		return false
	}
	h, _ := x.mux.Handler(x.r)
	return reflect.TypeOf(h) == redirecting
}

var redirecting = reflect.TypeOf(http.RedirectHandler("", http.StatusFound))

// errNotRecorded is the error of a run whose response is not recorded.
var errNotRecorded = errors.New("httponce: the handler answered with a status that is not recorded")

// hasAnswer reports whether a recorded response came back from once.
func hasAnswer(answer *recording, err error) bool {
	return answer != nil && (err == nil || errors.Is(err, once.ErrRejected))
}

// replay sends a recorded response.
func (x *exchange) replay(answer *recording) {
	switch {
	case answer.key != [16]byte{} && answer.key != x.key.UUID():
		x.log("the record of one key holds the answer of another", x.key.String(), nil)
		x.fail(problemDamaged)
	case answer.noBody:
		p := problemNotKept
		p.answer = answer.status
		if location := find(answer.head, "Location"); len(location) > 0 && location[0] != "" {
			x.w.Header().Set("Location", location[0])
		}
		x.w.Header()[ReplayedHeader] = yes
		x.fail(p)
	default:
		answer.replay(x.w)
	}
}

// refuse responds to a request for which the handler did not run. If the store
// cannot be reached and Options.FailOpen is set, next runs unguarded; next may
// be nil. refuse responds even if the context of the request has ended: the
// client need not have disconnected, and no response would be a 200.
func (x *exchange) refuse(err error, next http.Handler) {
	var p problem
	if errors.As(err, &p) {
		x.fail(p)
		return
	}
	p = problemOf(err)
	switch {
	case p.name == problemDown.name && x.r.Context().Err() == nil:
		x.log("the store cannot be used", "", err)
		if x.FailOpen && next != nil {
			next.ServeHTTP(x.w, x.run.request(x.r.Context(), x.r, &x.body))
			return
		}
	case p.status >= 500 && p.name != problemDown.name:
		x.log("a request could not be handled", x.key.String(), err)
	}
	x.fail(p)
}

func (x *exchange) fail(p problem) {
	if !x.body.taken && (x.place.standing == overLimit || x.place.standing == tooMany) {
		x.leaveUnread()
	}
	p.send(x.w, x.r, x.Docs)
}

// leaveUnread closes the connection after the response. Otherwise the server
// would first wait for the rest of the body, from a caller that is over its
// limits. Over HTTP/2 it only ends the stream.
func (x *exchange) leaveUnread() {
	if x.r.ProtoMajor == 1 && x.r.ContentLength != 0 {
		x.w.Header().Set("Connection", "close")
	}
}

// log logs an error. subject is what it is about; messages with the same text
// and subject are logged at intervals.
func (x *exchange) log(text string, subject string, err error) {
	x.store.Options().Logger.ErrorContext(x.r.Context(), "httponce: "+text, logs.Spaced(subject), "key", x.key, "method", x.r.Method, "error", err)
}

// close ends the exchange. It ends the request first, because the body is
// reused by another request.
func (x *exchange) close() {
	x.run.endRequest()
	x.place.leave(true)
	x.body.close()
	x.run.close()
}
