// Command chi guards the routes of a chi router. Use guards all routes, With
// guards one. A request without a key is not guarded, unless the route requires
// a key.
//
//	go run ./examples/chi
//	curl -i localhost:8080/notes -H 'Tenant: alice' -H 'Idempotency-Key: "note-1"' -d 'buy milk'
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"sync"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/httponce"
	"github.com/effectively-once/once/store/memstore"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// Notes and their keys are kept in memory and are lost with the process. A
// service uses a store in a database.
type notes struct {
	mu    sync.Mutex
	texts []string
}

func routes(store once.Store) http.Handler {
	n := new(notes)
	r := chi.NewRouter()
	r.Use(middleware.RequestID) // middleware outside the guard also runs for duplicates
	r.Route("/notes", func(r chi.Router) {
		r.Use(httponce.Middleware(store, tenant, &httponce.Options{Operation: "notes"}))
		r.Get("/", n.list)
		r.Post("/", n.add)
	})
	required := httponce.Middleware(store, tenant, &httponce.Options{Operation: "clear", Required: true})
	r.With(required).Delete("/notes", n.clear)
	return r
}

func tenant(r *http.Request) (string, error) {
	if name := r.Header.Get("Tenant"); name != "" { // stands for your authentication
		return name, nil
	}
	return "", errors.New("who calls?")
}

func (n *notes) add(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "The note could not be read", http.StatusBadRequest)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.texts = append(n.texts, string(text))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "note %d\n", len(n.texts))
}

func (n *notes) list(w http.ResponseWriter, _ *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(w, "%q\n", n.texts)
}

func (n *notes) clear(w http.ResponseWriter, _ *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.texts = nil
}

func main() {
	log.Fatal(http.ListenAndServe("localhost:8080", routes(memstore.New(nil))))
}
