package main

import (
	"io"
	"net/http"
	"testing"

	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
)

func BenchmarkHTTP(b *testing.B) {
	work := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = []string{"application/json"}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answerHTTP)
	})
	guarded := httponce.Handler(memstore.New(nil), tenant, work, nil)
	for name, key := range map[string]func() string{"first": newKeys(), "repeat": func() string { return "same" }, "none": nil} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				serve(guarded, key)
			}
		})
	}
}
