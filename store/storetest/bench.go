package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"time"

	"github.com/effectively-once/once"
)

// bench gives a case its stores, its own keys, and a way to fail. It is not a
// testing.T, because a passing test must show that cases can fail.
type bench struct {
	context.Context
	fixture
	store once.Store // the first of them
	run   string     // makes keys unique

	mu    sync.Mutex
	doing string // begins failures: what the case goes through
	first error
}

// inCase runs a case in its own goroutine, which ends at a failure, as in
// package testing.
func inCase(ctx context.Context, f fixture, check func(*bench)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*f.patience) // for stores that never return
	defer cancel()
	b := &bench{Context: ctx, fixture: f, store: f.stores[0], run: unique()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		check(b)
	}()
	<-done
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first
}

func unique() string {
	var random [8]byte
	rand.Read(random[:])
	return hex.EncodeToString(random[:])
}

// failf fails the case and ends the calling goroutine. The first failure of a
// case counts.
func (b *bench) failf(format string, args ...any) {
	b.mu.Lock()
	if b.first == nil {
		b.first = fmt.Errorf(b.doing+format, args...)
	}
	b.mu.Unlock()
	runtime.Goexit()
}

func (b *bench) failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first != nil
}

// must fails on an error of a call that has to succeed.
func (b *bench) must(doing string, err error) {
	if err != nil {
		b.failf("%s: %v", doing, err)
	}
}

// wantErr fails unless err is target.
func (b *bench) wantErr(doing string, err, target error) {
	if !errors.Is(err, target) {
		b.failf("%s: got error %v, want %v", doing, err, target)
	}
}

// until polls until a condition holds.
func (b *bench) until(what string, ok func() bool) {
	deadline := time.Now().Add(b.patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			b.failf("%s: not within %v", what, b.patience)
		}
		<-tick.C
	}
}

// together runs n calls at once and waits for them. It fails if one of them
// fails.
func (b *bench) together(n int, call func(i int)) {
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			<-start
			call(i)
		}()
	}
	close(start)
	wg.Wait()
	if b.failed() {
		runtime.Goexit()
	}
}

// spread returns the store of the i-th of several competitors.
func (b *bench) spread(i int) once.Store { return b.stores[i%len(b.stores)] }

// hasCapability reports whether a store has a capability.
func hasCapability[Capability any](s once.Store) bool {
	_, ok := once.As[Capability](s)
	return ok
}

// capability returns a capability of a store. It fails if the store has none: the
// cases of a capability are there if the first store has it.
func capability[Capability any](b *bench, s once.Store) Capability {
	c, ok := once.As[Capability](s)
	if !ok {
		b.failf("Open returned a store without %v after one with it", reflect.TypeFor[Capability]())
	}
	return c
}

// persist repeats a call that fails, as the contract allows: some databases
// give up under contention.
func (b *bench) persist(doing string, call func() error) {
	deadline := time.Now().Add(b.patience)
	for err := call(); err != nil; err = call() {
		if time.Now().After(deadline) || errors.Is(err, once.ErrLeaseLost) || errors.Is(err, once.ErrInvalid) {
			b.failf("%s: %v", doing, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// key returns a key that no other case and no other run uses.
func (b *bench) key(id string) once.Key {
	return once.Key{Scope: "tenant", Operation: "storetest-" + b.run, ID: id}
}

// token returns the owner of a claim. Within a case, the same name has the same
// owner.
func (b *bench) token(name string) (t [16]byte) {
	copy(t[:8], b.run)
	copy(t[8:], name)
	return t
}

// Durations of leases and retention: long ones do not end during a case, and
// short ones are waited for.
const (
	long  = time.Hour
	short = 5 * time.Millisecond

	// slowest is how long a database may take for a claim that nothing blocks. A
	// store that can only bound its waiting by time takes a slower claim for one
	// that has met a transaction in flight.
	slowest = 10 * time.Second

	// timeApart is how far stores that learn the time may be apart.
	timeApart = 2 * time.Second
)

func (b *bench) request(k once.Key, who string, lease time.Duration) once.ClaimRequest {
	return once.ClaimRequest{Fence: once.Fence{Key: k, Owner: b.token(who)}, Lease: lease, Fingerprint: []byte("print of " + who),
		Cause: causeOf(who)}
}

// causeOf returns a cause that depends on the name.
func causeOf(who string) [16]byte { return once.Key{Operation: "cause", ID: who}.UUID() }

// claim makes a claim that no transaction blocks. The case checks its result.
func (b *bench) claim(r once.ClaimRequest) once.Record {
	r.Wait = slowest
	rec, err := b.store.Claim(b, r)
	b.must("Claim", err)
	return rec
}

// own claims a key that is free, and fails if it is not.
func (b *bench) own(k once.Key, who string, lease time.Duration) once.Fence {
	rec := b.claim(b.request(k, who, lease))
	if rec.Owner != b.token(who) || rec.Status != once.Running && rec.Status != once.Unknown {
		b.failf("the key %q was free, and its claim returned %s", k.ID, show(rec))
	}
	return fenceOf(rec)
}

// lapse claims a key and waits until the lease has lapsed.
func (b *bench) lapse(k once.Key, who string) once.Fence {
	fence := b.own(k, who, short)
	b.become(k, once.Unknown)
	return fence
}

// become waits until a record has a status that it gets as time passes.
func (b *bench) become(k once.Key, want once.Status) once.Record {
	what := fmt.Sprintf("the record of %q becomes %v", k.ID, want)
	return b.inEachTime(k, what, func(rec once.Record) bool { return rec.Status == want })
}

// vanish waits until a key is forgotten.
func (b *bench) vanish(k once.Key) {
	b.inEachTime(k, fmt.Sprintf("the key %q is forgotten", k.ID), isZero)
}

// inEachTime waits until a record has become something as time passes: for the first
// store, and for each that may have another time.
func (b *bench) inEachTime(k once.Key, what string, ok func(once.Record) bool) (rec once.Record) {
	for i := len(b.stores) - 1; i >= 0; i-- {
		if i == 0 || b.learnsTime {
			b.until(what, func() bool {
				is, err := b.stores[i].Get(b, k)
				b.must("Get", err)
				rec = is
				return ok(rec)
			})
		}
	}
	return rec
}

func (b *bench) get(k once.Key) once.Record {
	rec, err := b.store.Get(b, k)
	b.must("Get", err)
	return rec
}

func (b *bench) settle(set once.Settlement) {
	b.must(fmt.Sprintf("Settle as %v", set.Status), b.store.Settle(b, set))
}

// wantStatus reads a record that must be in a status.
func (b *bench) wantStatus(k once.Key, want once.Status) once.Record {
	rec := b.get(k)
	if rec.Status != want {
		b.failf("the record of %q is %s, want %v", k.ID, show(rec), want)
	}
	return rec
}

// refused checks that a call returns ErrLeaseLost and changes nothing.
func (b *bench) refused(doing string, k once.Key, call func() error) {
	before := b.get(k)
	b.wantErr(doing, call(), once.ErrLeaseLost)
	b.unchanged(doing, before, b.get(k))
}

// unchanged compares two readings of a record. Running may lapse to Unknown in
// between, so cases that compare use long leases.
func (b *bench) unchanged(after string, was, is once.Record) {
	if grown := is.LeaseLeft - was.LeaseLeft; b.learnsTime && grown < timeApart {
		was.LeaseLeft = max(was.LeaseLeft, is.LeaseLeft)
	}
	if d := difference(was, is); d != "" {
		b.failf("after %s the record differs in %s:\nwas %s\nis  %s", after, d, show(was), show(is))
	}
}

// answered compares the answer of a claim with an earlier reading of the record.
// A Done record may lack its times in an answer.
func (b *bench) answered(after string, was, is once.Record) {
	if is.Status == once.Done && is.Created.IsZero() && is.Updated.IsZero() && is.Age == 0 {
		is.Created, is.Updated = was.Created, was.Updated
	}
	b.unchanged(after+", in its answer,", was, is)
}

func fenceOf(rec once.Record) once.Fence {
	return once.Fence{Key: rec.Key, Owner: rec.Owner, Attempt: rec.Attempt}
}

// ending returns a settlement whose retention does not end during a case.
func ending(fence once.Fence, status once.Status) once.Settlement {
	return once.Settlement{Fence: fence, Status: status, KeepOutcome: long, KeepKey: 2 * long, Reason: "because of " + status.String()}
}

// done returns a settlement with an outcome in which each lost part shows.
func done(fence once.Fence) once.Settlement {
	set := ending(fence, once.Done)
	set.Outcome = once.Outcome{Body: []byte("answer\x00\xff"), ContentType: "text/x-answer", Sum: 0xfffefdfc}
	return set
}

// difference returns the name of the first field in which two readings of a
// record differ.
func difference(was, is once.Record) string {
	switch {
	case was.Key != is.Key:
		return "Key"
	case was.Status != is.Status:
		return "Status"
	case was.Attempt != is.Attempt:
		return "Attempt"
	case was.Owner != is.Owner:
		return "Owner"
	case is.LeaseLeft > was.LeaseLeft:
		return "LeaseLeft, which grew"
	case !bytes.Equal(was.Fingerprint, is.Fingerprint):
		return "Fingerprint"
	case was.Cause != is.Cause:
		return "Cause"
	case !sameOutcome(was.Outcome, is.Outcome):
		return "Outcome"
	case was.Reason != is.Reason:
		return "Reason"
	case !was.Created.Equal(is.Created):
		return "Created"
	case !was.Updated.Equal(is.Updated):
		return "Updated"
	}
	return ""
}

// sameOutcome compares two outcomes. A nil body equals an empty one.
func sameOutcome(a, b once.Outcome) bool {
	return bytes.Equal(a.Body, b.Body) && a.ContentType == b.ContentType && a.Rejected == b.Rejected &&
		a.Omitted == b.Omitted && a.Sum == b.Sum
}

func isZero(rec once.Record) bool {
	return rec.Key == once.Key{} && rec.Age == 0 && rec.LeaseLeft == 0 && rec.Updated.IsZero() && rec.Created.IsZero() &&
		difference(rec, once.Record{}) == ""
}

// show returns a record for a failure message. It shortens large bodies.
func show(rec once.Record) string {
	body := rec.Outcome.Body
	if len(body) > 40 {
		body = append(bytes.Clone(body[:40]), "..."...)
	}
	return fmt.Sprintf("{%v attempt %d owner %x lease %v age %v fingerprint %q cause %x body %q type %q rejected %v omitted %v sum %d reason %q}",
		rec.Status, rec.Attempt, rec.Owner, rec.LeaseLeft, rec.Age, rec.Fingerprint, rec.Cause, body, rec.Outcome.ContentType,
		rec.Outcome.Rejected, rec.Outcome.Omitted, rec.Outcome.Sum, rec.Reason)
}
