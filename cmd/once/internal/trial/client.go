package trial

import (
	"context"
	"net/http"
	"time"
)

// NewClient opens a connection for each attempt. net/http repeats a request
// with a key by itself when a kept connection breaks, and a trial has to see
// each attempt. A redirect is an answer.
func NewClient(wait time.Duration) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: wait},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
