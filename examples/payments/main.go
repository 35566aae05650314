// Command payments is a small payment server that takes each payment once, and a
// client that shows it. To see a payment whose reply is lost, and its single row:
//
//	go run ./examples/payments
//
// To serve until interrupted:
//
//	go run ./examples/payments -serve :8080
//
// To send a payment as the customer with this API key:
//
//	curl -i localhost:8080/payments -H 'Api-Key: alice-secret' -H 'Idempotency-Key: "order-1"' -d '{"cents":4999}'
//
// The same command again gets the same answer, with Idempotent-Replayed: true.
// Another amount gets 422, a missing Idempotency-Key 400, and a wrong Api-Key 401.
// More than 10,000 cents are declined with 402, which is replayed as well. To look
// at a payment:
//
//	curl -i localhost:8080/payments/1 -H 'Api-Key: alice-secret'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// patience is how long a shutdown waits for running requests.
const patience = 20 * time.Second

func main() {
	address := flag.String("serve", "", "only serve, at this address")
	file := flag.String("db", "payments.db", "with -serve: the SQLite database")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *address, *file); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address, file string) error {
	if address == "" {
		return tellIn(ctx, os.Stdout)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	log.Printf("serving at %s", listener.Addr())
	return serve(ctx, listener, file)
}

// serve takes payments until ctx ends, and then finishes the running ones.
func serve(ctx context.Context, listener net.Listener, file string) error {
	b, err := openBank(ctx, file)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer b.db.Close()
	keep, stop := context.WithCancel(ctx)
	defer stop()
	go b.forgetOld(keep)
	server := &http.Server{Handler: b.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return server.Shutdown(limited)
}

// tellIn tells the story with a server and a database in a directory.
func tellIn(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "once-payments")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, filepath.Join(dir, "payments.db")) }()
	told := tell(ctx, out, fmt.Sprintf("http://%s", listener.Addr()))
	stop()
	return errors.Join(told, <-ended)
}
