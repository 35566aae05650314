package httponce

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"reflect"
)

// A guard gives its handler a ResponseWriter and a request, and a repeat none of
// them. A framework that keeps its own can answer around the guard, or go on
// after the guard has answered. Then repeats have repeated effects. What follows
// notices both. From then on the guard panics, because it cannot stop such a
// framework in another way.

const (
	aroundText = "httponce: the handler has responded around the guard, so nothing was recorded: " +
		"it must use the ResponseWriter that the guard passes to it"
	wentOnText = "httponce: the program went on after the guard had answered, so a repeat has run again: " +
		"end the chain of handlers after the guard, with c.Abort() in gin"
	mountText = "; see Routers in docs/http.md"
)

var errAround = errors.New(aroundText)

// checkMount panics if the guard was found to be mounted in a way in which it
// cannot work.
func (g *settings) checkMount() {
	if mistake := g.mistake.Load(); mistake != nil {
		panic(*mistake)
	}
}

// failMount logs a mistake, and panics for this and all later requests.
func (x *exchange) failMount(mistake string) {
	mistake += mountText
	x.mistake.CompareAndSwap(nil, &mistake)
	x.log("the guard is not mounted right", "", errors.New(mistake))
	panic(mistake)
}

// written is how far a ResponseWriter tells that its response has come.
type written struct {
	begun        bool
	status, size int
	server       bool // the server's own writer has begun
}

// writtenTo returns how far the response of w has come, as the writers of
// frameworks tell.
func writtenTo(w http.ResponseWriter) (is written) {
	if t, ok := w.(interface{ Written() bool }); ok {
		is.begun = t.Written()
	}
	if t, ok := w.(interface{ Status() int }); ok {
		is.status = t.Status()
	}
	if t, ok := w.(interface{ Size() int }); ok {
		is.size = t.Size()
	}
	return is
}

// enterHandler notes how far the response has come before the handler runs.
func (x *exchange) enterHandler() {
	x.before = writtenTo(x.w)
	x.before.server = hasBegun(x.w)
}

// wentAround reports whether a handler that has returned has used the outer
// ResponseWriter in place of that of the guard, which has sent nothing yet.
func (x *exchange) wentAround() bool {
	rec := x.run.rec
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.delivery != buffered:
		return false
	case !rec.informed && !x.before.isLike(writtenTo(x.w)):
		return true
	}
	return rec.status == 0 && !x.before.server && hasBegun(x.w)
}

// isLike compares what frameworks tell.
func (is written) isLike(now written) bool {
	now.server = is.server
	return is == now
}

// hasBegun reports whether the server has begun a response. Its writer does not
// tell, so hasBegun looks into it, and into those of net/http and others that
// are like it.
func hasBegun(w http.ResponseWriter) bool {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = outer.Unwrap()
	}
	v := reflect.ValueOf(w)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return false
	}
	v = v.Elem()
	if stream := v.FieldByName("rws"); stream.Kind() == reflect.Pointer && stream.Elem().Kind() == reflect.Struct { // HTTP/2
		v = stream.Elem()
	}
	begun := v.FieldByName("wroteHeader")
	return begun.Kind() == reflect.Bool && begun.Bool()
}

// watchForMore lets the guard notice if a chain of handlers goes on after the
// guard has answered. gin runs the rest of its chain unless that is aborted, and
// keeps the writer of the server in an exported field.
func (x *exchange) watchForMore() {
	if _, like := x.w.(interface {
		Written() bool
		WriteHeaderNow()
	}); !like {
		return
	}
	v := reflect.ValueOf(x.w)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return
	}
	field := v.Elem().FieldByName("ResponseWriter")
	if !field.IsValid() || field.Type() != reflect.TypeFor[http.ResponseWriter]() || !field.CanSet() || field.IsNil() {
		return
	}
	field.Set(reflect.ValueOf(&afterAnswer{field.Interface().(http.ResponseWriter), x}))
}

// afterAnswer is the writer of a response that is complete.
type afterAnswer struct {
	http.ResponseWriter
	x *exchange
}

var (
	_ http.Flusher  = (*afterAnswer)(nil)
	_ http.Hijacker = (*afterAnswer)(nil)
	_ closeNotifier = (*afterAnswer)(nil)
)

// closeNotifier is what gin expects of the writer of a server.
type closeNotifier interface{ CloseNotify() <-chan bool }

// Unwrap returns the writer of the server.
func (a *afterAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Write panics: somebody else answers too.
func (a *afterAnswer) Write(p []byte) (int, error) {
	if len(p) > 0 {
		a.x.failMount(wentOnText)
	}
	return a.ResponseWriter.Write(p)
}

// Flush flushes the response.
func (a *afterAnswer) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

// Hijack panics like Write.
func (a *afterAnswer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.x.failMount(wentOnText)
	return nil, nil, nil
}

// CloseNotify is for gin.
func (a *afterAnswer) CloseNotify() <-chan bool {
	if t, ok := a.ResponseWriter.(closeNotifier); ok {
		return t.CloseNotify()
	}
	return nil
}
