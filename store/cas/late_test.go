//go:build go1.25

package cas_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/cas"
)

// tardy is an engine whose second write arrives late, and whose reply to the first
// does.
type tardy struct {
	*table
	reply, request time.Duration
	writes         int
}

func (e *tardy) Put(ctx context.Context, row cas.Row, over string) (cas.Stored, error) {
	e.writes++
	if e.writes == 2 {
		time.Sleep(e.request) // fake time
	}
	is, err := e.table.Put(ctx, row, over)
	if e.writes == 1 {
		time.Sleep(e.reply)
	}
	return is, err
}

// An extension may be written after the lease has ended, because the engine
// compares no times. Meanwhile somebody has found the lease over, and frees the
// key when Lookup has answered.
func TestAnExtensionThatIsWrittenLateIsNotWorkedUnder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 3 * time.Second
		shared := newTable()
		late := &tardy{table: shared, reply: lease * 9 / 10, request: lease * 6 / 10}
		slow := &shop{cas.Transactions[*batch]{Store: cas.New(late, shared, once.Options{}.Ready()), Engine: shared}}
		quick := open(shared)
		charges := 0
		op := &once.Operation[string]{Name: "charge", SettleTime: time.Millisecond, Policy: once.Policy{Lease: lease},
			Lookup: func(context.Context, once.Key) (string, bool, error) {
				time.Sleep(lease)
				return "", false, nil
			}}
		charge := func(context.Context, once.Key) (string, error) {
			time.Sleep(lease)
			charges++
			return "charged", nil
		}
		go func() {
			time.Sleep(lease * 11 / 10)
			if got, err := once.Do(t.Context(), quick, op.For("1"), charge); err != nil || got != "charged" {
				t.Errorf("the second call: %q, %v", got, err)
			}
		}()
		if got, err := once.Do(t.Context(), slow, op.For("1"), charge); err != nil || got != "charged" {
			t.Errorf("the first call: %q, %v", got, err)
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		if charges != 1 {
			t.Errorf("%d charges", charges)
		}
	})
}
