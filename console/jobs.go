package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/effectively-once/once/internal/bucket"
	"github.com/effectively-once/once/internal/legible"
)

const (
	maxJobs    = 100 // that are remembered
	maxRunning = 16  // at once
	maxPlans   = 16  // that somebody is being asked about
	maxAsked   = 3 * maxCounted
	planTime   = 15 * time.Minute

	// stopTime is how long what is to stop may take to end: a job its last message,
	// and a comparison, a question or an examination all of it. Then what does not
	// answer is given up.
	stopTime = 15 * time.Second
)

// jobState is how far a job has come.
type jobState string

const (
	jobRunning  jobState = "running"
	jobStopping jobState = "stopping" // it ends after the message that it is at
	jobFinished jobState = "finished"
	jobStopped  jobState = "stopped"
	jobFailed   jobState = "failed"
)

// job is a change of many messages or keys at work, or its result.
type job struct {
	*plan  // its counted messages go with the end of the job
	Number int
	Begun  time.Time

	ctx    context.Context
	cancel context.CancelFunc
	stop   chan struct{} // closed once it is to stop

	mu      sync.Mutex
	state   jobState
	dealt   int // messages or keys that were changed, or had been
	tally   tally
	ended   time.Time
	stopped string // by whom
	trouble string // why it failed
}

// jobs are the changes that people were asked about, those at work, and the latest
// results. They are lost with the process: what was changed is in the stores.
type jobs struct {
	mu      sync.Mutex
	asked   []*plan // the oldest first
	all     []*job  // the oldest first
	last    int     // the number of the latest
	closed  bool
	running sync.WaitGroup
}

// ask keeps a plan until its person says yes, or it is too old.
func (j *jobs) ask(p *plan) {
	p.id = rand.Text()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.asked = append(j.asked, p)
	for len(j.asked) > maxPlans || j.counted() > maxAsked || p.At.Sub(j.asked[0].At) > planTime {
		j.asked[0] = nil
		j.asked = j.asked[1:]
	}
}

// counted returns how many messages people are being asked about.
func (j *jobs) counted() (n int) {
	for _, p := range j.asked {
		n += p.Tally.Matched
	}
	return n
}

var (
	errNoPlan  = errors.New("no such plan")
	errTooMany = errors.New("too many jobs")
	errClosed  = errors.New("closed")
)

// begin makes a job of a plan. A plan that was begun before is the same job.
func (j *jobs) begin(id, by string, now time.Time) (of *job, isNew bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at := -1
	for i, p := range j.asked {
		if p.id == id && p.By == by && now.Sub(p.At) <= planTime {
			at = i
		}
	}
	working := 0
	for _, other := range j.all {
		if other.id == id && other.By == by {
			return other, false, nil
		}
		if other.isWorking() {
			working++
		}
	}
	switch {
	case at < 0:
		return nil, false, errNoPlan
	case j.closed:
		return nil, false, errClosed
	case working >= maxRunning:
		return nil, false, errTooMany
	}
	p := j.asked[at]
	j.asked = append(j.asked[:at], j.asked[at+1:]...)
	j.last++
	of = &job{plan: p, Number: j.last, Begun: now, stop: make(chan struct{}), state: jobRunning}
	of.ctx, of.cancel = context.WithCancel(context.Background())
	if len(j.all) == maxJobs { // a result makes room: less than maxJobs are at work
		for i, other := range j.all {
			if !other.isWorking() {
				j.all = append(j.all[:i], j.all[i+1:]...)
				break
			}
		}
	}
	j.all = append(j.all, of)
	j.running.Add(1)
	return of, true, nil
}

// latest returns the jobs, the latest first.
func (j *jobs) latest() []*job {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]*job, len(j.all))
	for i, of := range j.all {
		out[len(out)-1-i] = of
	}
	return out
}

func (j *jobs) numbered(n int) *job {
	for _, of := range j.latest() {
		if of.Number == n {
			return of
		}
	}
	return nil
}

// close stops all jobs, and begins no more.
func (j *jobs) close() {
	j.mu.Lock()
	j.closed = true
	j.asked = nil
	j.mu.Unlock()
	for _, of := range j.latest() {
		of.end("the end of this console")
	}
}

func (j *job) isWorking() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.ended.IsZero()
}

// end tells a job to stop after the message that it is at. It reports whether that
// was news.
func (j *job) end(by string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state != jobRunning {
		return false
	}
	j.state, j.stopped = jobStopping, by
	close(j.stop)
	giveUp := time.AfterFunc(stopTime, j.cancel)
	context.AfterFunc(j.ctx, func() { giveUp.Stop() })
	return true
}

var errStopped = errors.New("stopped")

func (j *job) mayGoOn() error {
	select {
	case <-j.stop:
		return errStopped
	default:
		return nil
	}
}

// work carries out a job.
func (c *Console) work(j *job) {
	defer c.jobs.running.Done()
	defer j.cancel()
	var pace bucket.Bucket
	rate := bucket.Rate{PerSecond: j.Rate, Burst: max(int(j.Rate/10), 1)}
	next := func(ctx context.Context, most int) (int, error) {
		for {
			if err := j.mayGoOn(); err != nil {
				return 0, err
			}
			wait := pace.Take(rate, time.Now())
			if wait == 0 {
				break
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-j.stop:
				timer.Stop()
			case <-ctx.Done():
				timer.Stop()
				return 0, ctx.Err()
			}
		}
		if rate.PerSecond == 0 {
			return most, nil
		}
		n := 1
		for n < most && pace.Take(rate, time.Now()) == 0 {
			n++
		}
		return n, nil
	}
	dealt := func(n int) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.dealt = n
	}
	if j.keys != nil {
		j.keys.next, j.keys.dealt = next, dealt
	} else {
		j.messages.Before, j.messages.Next, j.messages.Dealt = j.mayGoOn, next, dealt
		j.messages.Begin()
	}
	done, err := c.carryOut(j)

	j.mu.Lock()
	matched := j.Tally.Matched
	j.tally = tally{Matched: matched, Changed: done.Changed, Unknown: done.Unknown, Moved: done.Moved,
		Taken: done.Taken, Sending: done.Sending}
	j.ended = c.now()
	switch {
	case err == nil:
		j.state = jobFinished
		j.tally.Moved = matched - done.Changed - done.Unknown - done.Taken
	case errors.Is(err, errStopped):
		j.state = jobStopped
	case j.ctx.Err() != nil:
		j.state, j.trouble = jobFailed, "the store did not answer for "+legible.Span(stopTime)+" after the stop: "+err.Error()
	default:
		j.state, j.trouble = jobFailed, err.Error()
	}
	state, tally, trouble := j.state, j.tally, j.trouble
	if j.ctx.Err() == nil { // or the store may still be at it
		j.plan.messages, j.plan.shelf, j.plan.outbox, j.plan.keys = nil, nil, nil, nil // thousands of versions
	}
	j.mu.Unlock()

	attrs := []any{"job", j.Number, "by", j.By, "store", j.Sel.Store, "deed", j.Verb.Done, "state", string(state), "matched", tally.Matched, "changed", tally.Changed,
		"unknown", tally.Unknown, "taken", tally.Taken, "sending", tally.Sending, "reason", j.Reason}
	if trouble != "" {
		c.log.Warn("console: a job failed", append(attrs, "error", trouble)...)
	} else {
		c.log.Info("console: a job ended", attrs...)
	}
	were := "were"
	if tally.Matched == 1 {
		were = "was"
	}
	c.trail.add(deed{At: c.now(), By: j.By, What: fmt.Sprintf("job %d %s: %d of %s %s %s", j.Number, state, tally.Changed,
		j.Things(tally.Matched), were, j.Verb.Done), Of: j.Sel.Failed(), Store: j.Sel.Store, Reason: j.Reason})
}

// carryOut runs the verb. A panic of a store ends the job, and not the program that
// the console is part of. A store that does not answer after the stop is given up.
func (c *Console) carryOut(j *job) (tally, error) {
	type result struct {
		tally
		err error
	}
	done, err := contained(j.ctx, c, j.Sel.Store, func() (result, error) {
		t, err := j.Verb.run(j.ctx, j.plan, 0, false)
		return result{t, err}, nil
	})
	if err != nil { // no result
		j.mu.Lock()
		defer j.mu.Unlock()
		return tally{Changed: j.dealt}, err
	}
	return done.tally, done.err
}

// progress is a job as a page shows it.
type progress struct {
	*plan
	Number                    int
	State                     jobState
	Working                   bool
	Dealt, Of                 int
	Result                    tally
	Rest                      int // that were not dealt with
	Begun, Ended              time.Time
	Took, Stopped, Trouble    string
	URL, List, Stop, ListText string
	Every                     int // milliseconds
}

func (v *view) progressOf(j *job) progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := progress{plan: j.plan, Number: j.Number, State: j.state, Working: j.ended.IsZero(), Dealt: j.dealt, Of: j.Tally.Changed, Result: j.tally,
		Begun: j.Begun, Ended: j.ended, Stopped: j.stopped, Trouble: legible.Lines(j.trouble),
		URL: v.link("/job", "number", strconv.Itoa(j.Number)), List: v.listLink(j.Sel), Every: 1000}
	if p.Working {
		p.Took = legible.Span(v.now().Sub(j.Begun))
		return p
	}
	p.Took = legible.Span(j.ended.Sub(j.Begun))
	p.Dealt = p.Result.Changed
	p.Rest = p.Result.Matched - p.Result.Changed - p.Result.Unknown - p.Result.Moved
	return p
}

// beginJob begins what somebody has said yes to.
func (v *view) beginJob() {
	j, isNew, err := v.jobs.begin(v.r.PostForm.Get("plan"), v.who.Name, v.now())
	switch {
	case errors.Is(err, errNoPlan):
		v.fail(http.StatusConflict, "This was not asked of you, or too long ago", "Nothing was changed. Count again, and confirm within 15 minutes.")
		return
	case errors.Is(err, errTooMany):
		v.fail(http.StatusServiceUnavailable, "Too many jobs are running", fmt.Sprintf("Nothing was changed. %d jobs are running: wait for one to end, or stop one. Then go back and confirm again.", maxRunning))
		return
	case err != nil:
		v.fail(http.StatusServiceUnavailable, "The console is closing", "Nothing was changed. Open it again in a moment.")
		return
	}
	if isNew {
		v.record(deed{What: fmt.Sprintf("began job %d: %s %s", j.Number, j.Verb.Do, j.Things(j.Tally.Changed)), Of: j.Sel.Failed(), Store: j.Sel.Store, Reason: j.Reason},
			"selection", j.Sel.String(), "matched", j.Tally.Matched, "not_done", j.NotDone)
		go v.Console.work(j)
	}
	v.seeOther(v.link("/job", "number", strconv.Itoa(j.Number)))
}

// jobNumbered returns the job that a request names, or says that there is none.
func (v *view) jobNumbered(text string) *job {
	n, err := strconv.Atoi(text)
	if err == nil {
		if j := v.jobs.numbered(n); j != nil {
			return j
		}
	}
	v.fail(http.StatusNotFound, "There is no such job", fmt.Sprintf("The console remembers the last %d since it started. What a job changed is in the store, and in the log.", maxJobs))
	return nil
}

func (v *view) showJob() {
	j := v.jobNumbered(v.r.URL.Query().Get("number"))
	if j == nil {
		return
	}
	v.render(http.StatusOK, "job", v.jobPage(j))
}

func (v *view) jobPage(j *job) page {
	p := page{Title: fmt.Sprintf("Job %d", j.Number), Nav: "jobs"}
	of := v.progressOf(j)
	if p.Body = of; of.Working {
		p.Live = v.link("/events", "of", "job", "number", strconv.Itoa(j.Number))
	}
	return p
}

func (v *view) stopJob() {
	j := v.jobNumbered(v.r.PostForm.Get("number"))
	if j == nil {
		return
	}
	if j.end(v.who.Name) {
		v.record(deed{What: fmt.Sprintf("stopped job %d", j.Number), Store: j.Sel.Store})
	}
	v.seeOther(v.link("/job", "number", strconv.Itoa(j.Number)))
}

func (v *view) listJobs() {
	var all []progress
	for _, j := range v.jobs.latest() {
		all = append(all, v.progressOf(j))
	}
	v.render(http.StatusOK, "jobs", page{Title: "Jobs", Nav: "jobs", Body: all})
}
