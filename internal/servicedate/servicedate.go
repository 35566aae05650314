// Package servicedate reads the time of a service from its responses.
package servicedate

import (
	"net/http"
	"time"
)

// Of returns the Date of a response that has one of the headers with which the
// service numbers its requests. A gateway, a proxy or a login page that answers in
// its place has none, and another clock. Nor is a response from a cache believed,
// whose Date has passed.
func Of(r *http.Response, ids ...string) (at time.Time, ok bool) {
	if r == nil || r.Header.Get("Age") != "" {
		return at, false
	}
	for _, id := range ids {
		if r.Header.Get(id) != "" {
			at, err := http.ParseTime(r.Header.Get("Date"))
			return at, err == nil
		}
	}
	return at, false
}
