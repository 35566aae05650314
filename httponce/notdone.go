package httponce

import (
	"net/http"
	"reflect"

	"github.com/effectively-once/once/internal/name"
)

// NotDone reports that the handler had no effect, so that the key is free again
// whatever the response is. Handlers call it before they return. w is the
// ResponseWriter that the handler received, or any wrapper of it.
//
// Through a wrapper without Unwrap, such as that of [http.TimeoutHandler], it
// travels in the header Once-Not-Done, which the guard removes.
func NotDone(w http.ResponseWriter) {
	for {
		switch t := w.(type) {
		case nil:
			return
		case *recorder:
			t.notDone.Store(true)
			return
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			if !isOfServer(w) {
				w.Header()[notDoneHeader] = []string{notDoneHere}
			}
			return
		}
	}
}

// notDoneHeader has the value notDoneHere if NotDone has set it. A handler that
// forwards the header of another server does not free the key.
const notDoneHeader = "Once-Not-Done"

var notDoneHere = name.Format(name.Token())

// takeNotDone removes what NotDone has left in the header.
func (c *recorder) takeNotDone() {
	if left := c.header[notDoneHeader]; len(left) == 1 && left[0] == notDoneHere {
		delete(c.header, notDoneHeader)
		c.notDone.Store(true)
	}
}

// isOfServer reports whether w is the server's own. Then no guard is around the
// handler.
func isOfServer(w http.ResponseWriter) bool {
	switch reflect.TypeOf(w).String() {
	case "*http.response", "*http.http2responseWriter":
		return true
	}
	return false
}
