package world

import (
	"context"
	"sync"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/internal/sim"
	"github.com/effectively-once/once/store/cas"
)

// ages judges what a store says of the past: an age is never shorter than the true
// one, for which a provider may keep a key, and the time since an attempt ended is
// never longer, after which its calls can no longer arrive. It knows the true time,
// which no process does.
type ages struct {
	world *sim.World

	mu    sync.Mutex
	lives map[string]*pastLife // by key
}

// pastLife is what is known of a key since its first claim.
type pastLife struct {
	created cas.Instant
	began   time.Time                 // when the first claim was written
	ended   map[cas.Instant]time.Time // no attempt can have ended earlier, by the Updated of the row that says so
}

// wrote is told of each row that the engine has written, in a call that began at a
// time, for a lease.
func (a *ages) wrote(row cas.Row, over string, asked time.Time, lease time.Duration) {
	key := sim.KeyText(row.Key)
	a.mu.Lock()
	defer a.mu.Unlock()
	life := a.lives[key]
	if life == nil || over == "" || row.Attempt == 1 && row.Created != life.created {
		life = &pastLife{created: row.Created, began: time.Now(), ended: make(map[cas.Instant]time.Time)}
		a.lives[key] = life
	}
	ended := asked
	if row.Status == once.Running {
		ended = asked.Add(lease)
	}
	if was, again := life.ended[row.Updated]; !again || ended.Before(was) {
		life.ended[row.Updated] = ended
	}
}

// told judges a record that a process got from a call that began at a time.
func (a *ages) told(p *sim.Process, rec once.Record, asked time.Time) {
	key := sim.KeyText(rec.Key)
	a.mu.Lock()
	defer a.mu.Unlock()
	life := a.lives[key]
	if life == nil || life.created.Time().Compare(rec.Created) != 0 {
		return // of a key that has been forgotten meanwhile
	}
	if least := asked.Sub(life.began); rec.Age < least {
		a.world.Broke(Age, key, "%s was told that it is %v old, and its first claim was %v before", p.Name, rec.Age, least)
	}
	ended, known := life.ended[cas.Instant(rec.Updated.UnixMicro())]
	if most := time.Since(ended); known && rec.Status == once.Unknown && -rec.LeaseLeft > max(most, time.Microsecond) {
		a.world.Broke(Age, key, "%s was told that its attempt ended %v ago, and it was %v at most", p.Name,
			-rec.LeaseLeft, most)
	}
}

// Claim has what it returns judged.
func (l *CASLink) Claim(ctx context.Context, r once.ClaimRequest) (once.Record, error) {
	asked := time.Now()
	rec, err := l.Transactions.Claim(ctx, r)
	return l.told(rec, err, asked)
}

// Get has what it returns judged.
func (l *CASLink) Get(ctx context.Context, k once.Key) (once.Record, error) {
	asked := time.Now()
	rec, err := l.Transactions.Get(ctx, k)
	return l.told(rec, err, asked)
}

func (l *CASLink) told(rec once.Record, err error, asked time.Time) (once.Record, error) {
	if err != nil || rec.Attempt == 0 {
		return rec, err
	}
	e := l.engine
	e.ages.told(e.p, rec, asked)
	if rec.Status == once.Absent && e.Freed != nil {
		e.Freed(sim.KeyText(rec.Key), e.world.Now()-time.Since(asked))
	}
	return rec, err
}
