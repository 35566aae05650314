package console

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"
)

// maxSessions bounds the sign-ins of one person. The one that was unused for longest
// makes room. Nobody can end those of another person by signing in again and again.
const maxSessions = 50

// sessionTime ends a session however much it is used.
const sessionTime = 12 * time.Hour

// session is the sign-in of a person.
type session struct {
	who         *Person
	begun, used time.Time
}

// sessions remembers who signed in. It knows the digests of the ids only: nothing
// here lets anybody in.
type sessions struct {
	idle time.Duration

	mu  sync.Mutex
	all map[[32]byte]*session
}

// begin returns the random id of a new session.
func (s *sessions) begin(who *Person, now time.Time) string {
	var raw [32]byte
	rand.Read(raw[:]) // never fails: it ends the program instead
	id := hex.EncodeToString(raw[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = make(map[[32]byte]*session)
	}
	s.makeRoom(who, now)
	s.all[sha256.Sum256([]byte(id))] = &session{who, now, now}
	return id
}

// makeRoom ends sessions that are over, and lets a person have another one.
func (s *sessions) makeRoom(who *Person, now time.Time) {
	var oldest [32]byte
	own := 0
	for digest, other := range s.all {
		switch {
		case s.over(other, now):
			delete(s.all, digest)
		case other.who == who:
			if own++; own == 1 || other.used.Before(s.all[oldest].used) {
				oldest = digest
			}
		}
	}
	if own >= maxSessions {
		delete(s.all, oldest)
	}
}

// of returns the person of a session, or nil. A page that looks by itself is no use
// of the session by its person.
func (s *sessions) of(id string, now time.Time, uses bool) *Person {
	digest := sha256.Sum256([]byte(id))
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.all[digest]
	if found == nil {
		return nil
	}
	if s.over(found, now) {
		delete(s.all, digest)
		return nil
	}
	if uses {
		found.used = now
	}
	return found.who
}

func (s *sessions) finish(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sha256.Sum256([]byte(id)))
}

func (s *sessions) over(of *session, now time.Time) bool {
	return now.Sub(of.used) > s.idle || now.Sub(of.begun) > sessionTime
}
