//go:build linux

package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	rivals     = 2  // workers that race for the same IDs
	sharedIDs  = 12 // at the same time; when all are done, the next ones follow
	killsEach  = 3  // of a rival, in one round
	killRounds = 4
	latestKill = 40 * time.Millisecond // after a worker's first answer
)

// answers has the acknowledged answers by ID. The first answer must be the only
// one.
type answers struct {
	mu    sync.Mutex
	first map[string]string
	wrong []string
}

func (a *answers) note(id, answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if first, known := a.first[id]; known && first != answer {
		a.wrong = append(a.wrong, fmt.Sprintf("%s was answered with %q, and then with %q", id, first, answer))
		return
	}
	a.first[id] = answer
}

// anyMoment lets workers race for the same IDs, and kills them at random
// moments.
func (a *arena) anyMoment(t *testing.T, ctx context.Context) {
	chance := a.chance("moments")
	l := a.lanes[0]
	for range killRounds {
		ids := make([]string, sharedIDs)
		for i := range ids {
			ids[i] = fmt.Sprintf("s%d", a.ids.Add(1))
		}
		noted := &answers{first: map[string]string{}}
		var wg sync.WaitGroup
		for range rivals {
			order := chance.Perm(len(ids))
			delays := make([]time.Duration, killsEach)
			for i := range delays {
				delays[i] = time.Duration(chance.Int64N(int64(latestKill)))
			}
			wg.Go(func() {
				for _, delay := range delays {
					a.killLater(t, ctx, l, ids, order, delay, noted)
				}
			})
		}
		wg.Wait()
		a.settleUp(t, ctx, l, ids, noted)
		if t.Failed() {
			return
		}
	}
}

// settleUp finishes the IDs, and checks that the answers are those that were
// acknowledged.
func (a *arena) settleUp(t *testing.T, ctx context.Context, l *lane, ids []string, noted *answers) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(ids); i = next.Add(1) - 1 {
				a.settleOne(t, ctx, l, ids[i], noted)
			}
		})
	}
	wg.Wait()
	for _, wrong := range noted.wrong {
		a.losses.Add(1)
		t.Errorf("%s: %s", a.engine, wrong)
	}
}

func (a *arena) settleOne(t *testing.T, ctx context.Context, l *lane, id string, noted *answers) {
	s, err := a.shared(l, id)
	if err != nil {
		t.Error(err)
		return
	}
	answer, err := s.finish(ctx, eachPath)
	if err == nil {
		noted.note(id, answer)
	}
	err = eachPath.check(ctx, s, answer, err)
	a.judge(err)
	if err != nil {
		t.Errorf("%s/%s: %v", a.engine, id, err)
	}
}

// shared returns the scene of an ID that several workers have at once.
func (a *arena) shared(l *lane, id string) (*scene, error) {
	w, err := l.world("")
	return &scene{world: w, outside: outside{l.outside}, id: id, lease: sharedLease, settle: sharedLease}, err
}

// killLater starts a worker, waits until it has finished one ID, and kills it a
// moment later.
func (a *arena) killLater(t *testing.T, ctx context.Context, l *lane, ids []string, order []int, delay time.Duration, noted *answers) {
	cmd := a.command(t, ctx, task{place: l.place, Outside: l.outside, Role: serves, Lease: sharedLease, Settle: sharedLease})
	var complained strings.Builder
	cmd.Stderr = &complained
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer in.Close()
		lines := bufio.NewScanner(out)
		for n, i := range order {
			if _, err := fmt.Fprintln(in, ids[i]); err != nil {
				return // it was killed
			}
			if !lines.Scan() {
				return
			}
			id, answer, _ := strings.Cut(lines.Text(), " ")
			noted.note(id, answer)
			if n == 0 {
				timer.Reset(delay)
			}
		}
	}()
	select {
	case <-timer.C:
		_ = cmd.Process.Kill()
	case <-done:
	}
	<-done
	_ = cmd.Wait()
	switch state := cmd.ProcessState.Sys().(syscall.WaitStatus); {
	case state.Signaled() && state.Signal() == syscall.SIGKILL:
		a.cycles.Add(1)
	case state.ExitStatus() != 0:
		t.Errorf("%s: a worker ended with %v: %s", a.engine, state, complained.String())
	}
}

// command returns a worker that is not started.
func (a *arena) command(t *testing.T, ctx context.Context, k task) *exec.Cmd {
	spec, err := json.Marshal(k)
	if err != nil {
		t.Error(err)
	}
	return exec.CommandContext(ctx, a.worker, string(spec))
}
