//go:build linux

package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// workload is the configuration of a producer.
type workload struct {
	Pause time.Duration // between two transactions, at most
	Long  time.Duration // how long one stays open now and then; 0: never
}

const orderKeys = 6

const (
	addMade = "INSERT INTO made (id, ord, seq) VALUES (?, ?, ?)"
	addTurn = "UPDATE turn SET seq = seq + 1 WHERE ord = ?" // whoever has this row puts next
	getTurn = "SELECT seq FROM turn WHERE ord = ?"
)

var errDoomed = errors.New("this is to be rolled back")

// produce commits rows with their messages, one transaction after another, until ctx ends.
func (p plan) produce(ctx context.Context, w *world, logger *slog.Logger) error {
	f := &factory{plan: p, world: w, chance: rand.New(rand.NewPCG(p.Seed, 5))}
	for ctx.Err() == nil {
		if err := f.transact(context.Background()); err != nil && !errors.Is(err, errDoomed) {
			logger.Warn("a transaction failed", "error", err)
		}
		pause(time.Duration(f.chance.Int64N(int64(p.Work.Pause))))
	}
	return nil
}

// factory is a running producer.
type factory struct {
	plan
	world  *world
	chance *rand.Rand
	made   int
}

// transact runs one transaction of a random kind.
func (f *factory) transact(ctx context.Context) error {
	f.made++
	name := fmt.Sprintf("%s-%d-%d", f.Name, f.Seed, f.made)
	key, n := "", 1+f.chance.IntN(3)
	if f.chance.IntN(4) > 0 {
		key = fmt.Sprintf("k%d", f.chance.IntN(orderKeys))
	}
	doomed, long, undone := f.chance.IntN(6) == 0, f.Work.Long > 0 && f.chance.IntN(30) == 0, f.chance.IntN(8) == 0
	late := key == "" && f.chance.IntN(5) == 0
	do := func(x tx) error {
		if undone {
			if err := undo(x, name); err != nil {
				return err
			}
		}
		for i := range n {
			if err := put(x, fmt.Sprintf("%s-%d", name, i), key, late); err != nil {
				return err
			}
		}
		if long && key == "" {
			pause(f.Work.Long)
		}
		if doomed {
			return errDoomed
		}
		return nil
	}
	if f.chance.IntN(2) == 0 {
		return f.world.once(ctx, name, do)
	}
	return f.world.own(ctx, do)
}

// put writes a row and puts a message about it.
func put(x tx, id, key string, late bool) (err error) {
	var seq int64
	if key != "" {
		if err := errors.Join(x.exec(addTurn, key), x.Ask(&seq, getTurn, key)); err != nil {
			return err
		}
	}
	if err := x.exec(addMade, id, key, seq); err != nil {
		return err
	}
	delay := time.Duration(0)
	if late {
		delay = 200 * time.Millisecond
	}
	return x.put(delay, message(id, key, seq))
}

// undo writes a row and its message, and rolls back to a savepoint before them.
func undo(x tx, name string) error {
	if err := x.exec("SAVEPOINT here"); err != nil {
		return err
	}
	if err := put(x, name+"-undone", "", false); err != nil {
		return err
	}
	return x.exec("ROLLBACK TO SAVEPOINT here")
}
