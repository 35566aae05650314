package demo

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type answering func(*http.Request) (*http.Response, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

// Customers ask again and again, but not for ever: what they are told in the end says why.
func TestCustomersGiveUp(t *testing.T) {
	for want, shop := range map[string]answering{
		"500 the disk is full": func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 500, Body: io.NopCloser(strings.NewReader("the disk is full"))}, nil
		},
		"nobody answers": func(*http.Request) (*http.Response, error) { return nil, errors.New("nobody answers") },
	} {
		synctest.Test(t, func(t *testing.T) {
			s, begun := newBareSide(), time.Now()
			s.changed, s.client = sync.NewCond(&s.mu), &http.Client{Transport: shop}
			s.processes = []*process{{url: "http://shop"}}
			err := s.request(t.Context(), Order{ID: "order-1"}, func() {})
			if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), want) || took < stuckAfter || took > stuckAfter+time.Minute {
				t.Errorf("after %v: %v, want %q", took, err, want)
			}
		})
	}
}
