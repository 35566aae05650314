package servicedate_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/effectively-once/once/internal/servicedate"
)

func TestOnlyTheServiceTellsItsTime(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	date := at.Format(http.TimeFormat)
	for name, c := range map[string]struct {
		header map[string]string
		ok     bool
	}{
		"the service":          {map[string]string{"Date": date, "x-ms-request-id": "1"}, true},
		"its other header":     {map[string]string{"Date": date, "x-ms-activity-id": "1"}, true},
		"a gateway":            {map[string]string{"Date": date}, false},
		"a gateway with an ID": {map[string]string{"Date": date, "x-request-id": "1"}, false},
		"an empty ID":          {map[string]string{"Date": date, "x-ms-request-id": ""}, false},
		"a cache":              {map[string]string{"Date": date, "x-ms-request-id": "1", "Age": "60"}, false},
		"no Date":              {map[string]string{"x-ms-request-id": "1"}, false},
		"no time":              {map[string]string{"Date": "now", "x-ms-request-id": "1"}, false},
	} {
		r := &http.Response{Header: make(http.Header)}
		for k, v := range c.header {
			r.Header.Set(k, v)
		}
		got, ok := servicedate.Of(r, "x-ms-request-id", "x-ms-activity-id")
		if ok != c.ok || ok && !got.Equal(at) {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
	}
	if _, ok := servicedate.Of(nil, "x-ms-request-id"); ok {
		t.Error("no response tells the time")
	}
}
