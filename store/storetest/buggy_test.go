package storetest_test

import (
	"bytes"
	"context"
	"hash/adler32"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
)

// database is the database of a store with one bug. Without a bug it keeps the
// whole contract.
type database struct {
	bug     string
	entered atomic.Int64 // calls so far
	asked   atomic.Int64 // times that were asked for so far

	mu      sync.Mutex
	rows    map[any]row
	before  map[any]row          // the previous version
	pieces  map[any]once.Outcome // outcomes that an interrupted Forget has left
	effects map[string]int       // committed rows, by name
	taken   map[any]*buggyTx     // keys written by a transaction in flight
	owners  map[[16]byte]bool    // all owners that ever had a key
}

type row struct {
	once.Record
	lease, keepOutcome, keepKey time.Time
}

type buggyTx struct {
	rows    map[any]row
	effects map[string]int
	aborted bool
}

func newDatabase(bug string) *database {
	return &database{bug: bug, rows: make(map[any]row), before: make(map[any]row), pieces: make(map[any]once.Outcome),
		effects: make(map[string]int), taken: make(map[any]*buggyTx), owners: make(map[[16]byte]bool)}
}

func (d *database) has(bug string) bool { return d.bug == bug }

// buggyStore is one process on a database.
type buggyStore struct {
	*database
	options *once.Options
	skew    time.Duration // of this process's clock, which must not affect anything
	cache   map[once.Key]row
}

// now returns another time at each call, also where time is faked.
func (s *buggyStore) now() time.Time {
	now := time.Now().Add(time.Duration(s.asked.Add(1)))
	if s.has("client clock") {
		return now.Add(s.skew)
	}
	return now
}

func (s *buggyStore) Options() *once.Options {
	if s.has("options made anew") {
		return once.Options{}.Ready()
	}
	return s.options
}

// index returns what the unique index is over.
func (s *buggyStore) index(k once.Key) any {
	all := k.Scope + k.Operation + k.ID
	switch s.bug {
	case "weak digest":
		return adler32.Checksum([]byte(k.Scope + "\x00" + k.Operation + "\x00" + k.ID))
	case "parts run together":
		return all
	case "parts with a separator":
		return k.Scope + ":" + k.Operation + ":" + k.ID
	case "case ignored":
		return once.Key{Scope: k.Scope, Operation: k.Operation, ID: strings.ToLower(k.ID)}
	case "padding ignored":
		return once.Key{Scope: k.Scope, Operation: k.Operation, ID: strings.TrimRight(k.ID, " ")}
	case "long keys cut":
		return once.Key{Scope: k.Scope, Operation: k.Operation, ID: k.ID[:min(len(k.ID), 254)]}
	case "scope ignored":
		return once.Key{Operation: k.Operation, ID: k.ID}
	}
	return k
}

func (s *buggyStore) load(tx *buggyTx, k once.Key) (row, bool) {
	at := s.index(k)
	holder := s.taken[at]
	switch {
	case holder == nil && !s.has("a transaction locks the table") || s.has("blind to transactions in flight"):
		return s.rows[at], true
	case holder == tx:
		return tx.rows[at], true
	case len(s.taken) > 0 && s.has("a transaction locks the table"):
		return row{}, false
	case holder == nil:
		return s.rows[at], true
	default:
		return row{}, false
	}
}

func (s *buggyStore) save(tx *buggyTx, r row) {
	at := s.index(r.Key)
	if tx == nil {
		s.before[at] = s.rows[at]
		s.rows[at] = r
		return
	}
	tx.rows[at] = r
	s.taken[at] = tx
}

// read returns the record of a row as it is at a time.
func (s *buggyStore) read(r row, now time.Time) once.Record {
	is := r.Record
	is.Age = now.Sub(is.Created)
	if !s.has("hands out its slices") {
		is.Fingerprint, is.Outcome.Body = bytes.Clone(is.Fingerprint), bytes.Clone(is.Outcome.Body)
	}
	switch left := r.lease.Sub(now); r.Status {
	case once.Running:
		switch is.LeaseLeft = left; {
		case left <= 0 && s.has("remaining 0 read as none"):
			is.LeaseLeft = 0
		case left <= 0:
			is.Status, is.LeaseLeft = once.Unknown, min(left, -1)
			if s.has("lapsed is free") {
				is.Status, is.Owner = once.Absent, [16]byte{}
			}
		}
	case once.Unknown:
		is.LeaseLeft = min(left, -1)
		if s.has("unknown keeps its lease") {
			is.LeaseLeft = left
		}
	case once.Absent, once.Done, once.Expired:
		if !now.Before(r.keepKey) && !s.has("keys kept for ever") {
			return once.Record{}
		}
		if r.Status == once.Absent && !s.has("release keeps its owner") {
			is.Owner = [16]byte{}
		}
		if r.Status == once.Done {
			s.readOutcome(&is, r, now)
		}
	}
	return is
}

func (s *buggyStore) readOutcome(is *once.Record, r row, now time.Time) {
	if !now.Before(r.keepOutcome) {
		switch is.Status, is.Outcome = once.Expired, (once.Outcome{}); s.bug {
		case "outcomes kept until Forget":
			is.Status, is.Outcome = once.Done, r.Outcome
		case "fingerprint dropped with the outcome":
			is.Fingerprint = nil
		}
		return
	}
	body := &is.Outcome.Body
	if is.OutcomeLeft = min(r.keepOutcome.Sub(now), r.keepKey.Sub(now)); s.has("what is left of the key") {
		is.OutcomeLeft = r.keepKey.Sub(now)
	}
	switch s.bug {
	case "empty outcome lost":
		if len(*body) == 0 {
			is.Status, is.Outcome = once.Expired, once.Outcome{}
		}
	case "falsy outcome lost":
		if slices.Contains([]string{"null", "0", "false", `""`, "{}"}, string(*body)) {
			*body = nil
		}
	case "text cut at a zero byte":
		*body, _, _ = bytes.Cut(*body, []byte{0})
	case "text made valid":
		*body = bytes.ToValidUTF8(*body, []byte("?"))
	case "outcome cut at 64 KiB":
		*body = (*body)[:min(len(*body), 1<<16-1)]
	case "rejection lost":
		is.Outcome.Rejected = false
	case "omission lost":
		is.Outcome.Omitted = false
	case "type lost":
		is.Outcome.ContentType = "application/json"
	case "sum signed":
		is.Outcome.Sum &= 1<<31 - 1
	}
}

func (s *buggyStore) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil && !s.has("context ignored") {
		return err
	}
	s.entered.Add(1)
	s.mu.Lock()
	return nil
}

func (s *buggyStore) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	if err := s.enter(ctx); err != nil {
		return once.Record{}, err
	}
	defer s.mu.Unlock()
	return s.claim(nil, r), nil
}

func (s *buggyStore) claim(tx *buggyTx, r once.ClaimRequest) once.Record {
	was, ok := s.load(tx, r.Key)
	if !ok {
		return once.Record{Key: r.Key, Status: once.Running}
	}
	now := s.now()
	is := s.read(was, now)
	if s.has("looks, then acts") {
		s.mu.Unlock()
		s.hesitate()
		s.mu.Lock()
	}
	if is.Attempt == 0 && was.Attempt > 0 && s.has("refused by a row that has expired") {
		return is
	}
	if is.Status == once.Absent && is.Attempt > 0 && was.Owner == r.Owner && !s.has("late claim taken for a new one") {
		return is
	}
	if !s.free(is, r) {
		if s.has("cause of a duplicate written") {
			was.Cause, is.Cause = r.Cause, r.Cause
			s.save(tx, was)
		}
		if is.Owner == r.Owner {
			return s.ownClaim(was, is, r, now)
		}
		if s.owners[r.Owner] && s.has("former owner taken for the present one") {
			is.Owner = r.Owner
		}
		return is
	}
	next := row{lease: now.Add(r.Lease), Record: once.Record{Key: r.Key, Status: once.Running, Attempt: is.Attempt + 1, Owner: r.Owner,
		Fingerprint: r.Fingerprint, Cause: r.Cause, Created: is.Created, Updated: now}}
	s.spoilClaim(&next, was, is, now)
	s.save(tx, next)
	return s.read(next, now)
}

// hesitate lets other calls come in between.
func (d *database) hesitate() {
	seen, deadline := d.entered.Load(), time.Now().Add(2*time.Second)
	for d.entered.Load() < seen+3 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
}

// free decides whether a claim takes the key.
func (s *buggyStore) free(is once.Record, r once.ClaimRequest) bool {
	named := is.Attempt == r.Attempt && is.Owner != r.Owner
	switch is.Status {
	case once.Absent:
		return r.Attempt == 0 || !s.has("attempt named, and nothing taken")
	case once.Unknown:
		return named || is.Owner != r.Owner && (s.has("takes over unasked") || s.has("takes over by any attempt") && r.Attempt != 0)
	case once.Running:
		return named && s.has("takes over the living") || is.Owner != r.Owner && s.has("a claim is an upsert")
	case once.Done:
		return named && s.has("takes over what is done") || s.has("a claim is an upsert")
	case once.Parked:
		return named && s.has("takes over the parked")
	case once.Expired:
		return s.has("expired is free")
	}
	return false
}

func (s *buggyStore) ownClaim(was row, is once.Record, r once.ClaimRequest, now time.Time) once.Record {
	switch s.bug {
	case "own claim met as a rival":
		is.Owner = [16]byte{}
	case "own claim renewed":
		was.lease = now.Add(r.Lease)
		s.save(nil, was)
		return s.read(was, now)
	case "own claim counted":
		was.Attempt++
		s.save(nil, was)
		return s.read(was, now)
	}
	return is
}

func (s *buggyStore) spoilClaim(next *row, was row, is once.Record, now time.Time) {
	s.owners[next.Owner] = true
	if !s.has("keeps the caller's slices") {
		next.Fingerprint = bytes.Clone(next.Fingerprint)
	}
	if is.Attempt == 0 || s.has("release resets the age") && is.Status == once.Absent || s.has("takeover resets the age") {
		next.Created = now
	}
	switch s.bug {
	case "done before the work":
		next.Status, next.keepKey, next.keepOutcome = once.Done, now.Add(time.Hour), now.Add(time.Hour)
	case "takeover keeps the attempt":
		next.Attempt = max(is.Attempt, 1)
	case "release forgets the count":
		if is.Status == once.Absent {
			next.Attempt = 1
		}
	case "forgotten counts on":
		next.Attempt = was.Attempt + 1
	case "reason outlives a claim":
		next.Reason = was.Reason
	case "fingerprint outlives a claim":
		if len(next.Fingerprint) == 0 {
			next.Fingerprint = was.Fingerprint
		}
	case "cause not written":
		next.Cause = [16]byte{}
	case "cause outlives a claim":
		if next.Cause == [16]byte{} {
			next.Cause = was.Cause
		}
	case "lease as long as the retention":
		if was.keepKey.After(next.lease) {
			next.lease = was.keepKey
		}
	case "claim keeps the retention before it":
		next.keepKey = was.keepKey
	}
	if piece, ok := s.pieces[s.index(next.Key)]; ok {
		next.Outcome = piece
	}
}
