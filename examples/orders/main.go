// Command orders is a small shop made of consumers, which are killed repeatedly
// and still handle everything once.
//
//	go run ./examples/orders
//
// An order is placed and paid. Then four consumers handle it, each with the guard
// that its effect needs:
//
//	payment      calls a payment provider that honours idempotency keys     inbox.Do, Resend
//	fulfilment   reserves stock, one row per order                          inbox.Tx, and a unique index
//	loyalty      adds points with an increment                              inbox.Tx
//	mail         sends an e-mail, which cannot be undone or looked up       inbox.Do, Park
//	analytics    counts orders, and may count one twice                     none, on purpose
//
// The broker is an in-process NATS JetStream and the database is SQLite, both in a
// temporary directory. The consumers run in a child process that is killed with
// SIGKILL and restarted. Many orders are published again later, as by producers
// that lost a confirmation. At the end the program counts the effects.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	orders := flag.Int("orders", 60, "how many orders are placed")
	kills := flag.Int("kills", 8, "how often the consumers are killed")
	seed := flag.Uint64("seed", 1, "for what is left to chance")
	worker := flag.String("worker", "", "for the program's own use: run the consumers in this directory")
	flag.Parse()
	if *orders < 1 || *kills < 0 {
		log.Fatal("give at least one order, and no negative number of kills")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *worker != "" {
		err = work(ctx, *worker)
	} else {
		err = play(ctx, os.Stdout, story{orders: *orders, kills: *kills, seed: *seed})
	}
	if err != nil {
		log.Fatal(err)
	}
}

// play runs the story in a temporary directory and prints its result.
func play(ctx context.Context, out io.Writer, s story) error {
	dir, err := os.MkdirTemp("", "once-orders-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintf(out, "%d orders are placed, and their consumers killed %d times. This takes a while.\n", s.orders, s.kills)
	v, err := s.run(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Fprint(out, v)
	if !v.holds() {
		return fmt.Errorf("a customer would have noticed")
	}
	fmt.Fprintln(out, "\nNo customer has noticed anything.")
	return nil
}
