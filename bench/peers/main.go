// Command peers runs other libraries in the contests of the benchmark. It is started by that, and told over its
// standard input, a line of JSON at a time, where to prepare and whose turn it is. Its output are the replies.
//
// What they do is chosen in their favour: what a peer does beyond the work of the contest is left out where that can be done.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/effectively-once/once/bench/internal/turn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	updateSQL = `UPDATE account SET bal = bal + 1 WHERE id = $1`
	accounts  = 100_000

	connections = 40
)

// answer300 is an answer of 300 bytes, as in the other variants.
var answer300 = strings.Repeat("x", 300)

func someAccount() int { return rand.IntN(accounts) }

// peer is a library on an open database.
type peer struct {
	turn.Peer
	run func(ctx context.Context, workers int, length time.Duration) (turn.Tally, error)
}

func main() {
	var now opened
	defer now.close()
	replies := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var q turn.Request
		err := json.Unmarshal(lines.Bytes(), &q)
		var reply turn.Reply
		if err == nil {
			reply, err = now.answer(context.Background(), q)
		}
		if err != nil {
			reply = turn.Reply{Error: err.Error()}
		}
		if err := replies.Encode(reply); err != nil {
			fmt.Fprintln(os.Stderr, "peers:", err)
			return
		}
	}
}

// opened are the peers on the latest requested database.
type opened struct {
	pool    *pgxpool.Pool
	peers   []peer
	closers []func()
}

func (o *opened) answer(ctx context.Context, q turn.Request) (reply turn.Reply, err error) {
	if q.Peer != "" {
		reply.Tally, err = o.turn(ctx, q)
		return reply, err
	}
	o.close()
	switch {
	case q.DSN != "":
		err = o.open(ctx, q.DSN)
	case q.InMemory:
		o.addFiberHandler()
	}
	for _, p := range o.peers {
		reply.Peers = append(reply.Peers, p.Peer)
	}
	return reply, err
}

func (o *opened) turn(ctx context.Context, q turn.Request) (turn.Tally, error) {
	for _, p := range o.peers {
		if p.Name == q.Peer {
			return p.run(ctx, q.Workers, q.Length)
		}
	}
	return turn.Tally{}, fmt.Errorf("there is no peer %q", q.Peer)
}

func (o *opened) open(ctx context.Context, dsn string) error {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return err
	}
	config.MaxConns = connections
	if o.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	o.addWatermill()
	return errors.Join(o.addRiver(ctx), o.addDBOS(ctx), o.addFiber(), o.addPublishing(ctx))
}

func (o *opened) add(p peer) { o.peers = append(o.peers, p) }

func (o *opened) close() {
	for _, closer := range o.closers {
		closer()
	}
	if o.pool != nil {
		o.pool.Close()
	}
	*o = opened{}
}

// version returns the version of a module of this program.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range info.Deps {
			if m.Path == module {
				return m.Version
			}
		}
	}
	return "of unknown version"
}

// quiet discards logs of peers. Their calls return errors.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
