//go:build linux

package consume

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// order is a request to the other system.
type order struct {
	Name, Ord string
	Seq       int64
	Process   string
}

// remote is another system, which does each key once. Now and then it loses its
// answer or fails.
type remote struct {
	url string

	mu      sync.Mutex
	chance  *rand.Rand
	healthy bool
	keys    map[string]bool
	done    []order // in the order in which it was done
	repeats int     // requests with a key that was known
	lost    int     // answers
}

func openRemote(t testing.TB, seed uint64) *remote {
	r := &remote{chance: rand.New(rand.NewPCG(seed, 7)), keys: make(map[string]bool)}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

func (r *remote) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var o order
	if err := json.NewDecoder(q.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answers, lost := r.do(q.Header.Get("Idempotency-Key"), o)
	switch {
	case !answers:
		http.Error(w, "out of order", http.StatusServiceUnavailable)
	case lost:
		panic(http.ErrAbortHandler) // the connection ends without an answer
	}
}

func (r *remote) do(key string, o order) (answers, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.healthy && r.chance.IntN(20) == 0 {
		return false, false
	}
	if r.keys[key] {
		r.repeats++
	} else {
		r.keys[key] = true
		r.done = append(r.done, o)
	}
	if !r.healthy && r.chance.IntN(10) == 0 {
		r.lost++
		return true, true
	}
	return true, false
}

// heal ends the faults.
func (r *remote) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.healthy = true
}

// effects returns what was done, in the form of the rows of other handlers.
func (r *remote) effects() (all []effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.done {
		all = append(all, effect{"handled", o.Name, o.Ord, o.Seq, o.Process})
	}
	return all
}
