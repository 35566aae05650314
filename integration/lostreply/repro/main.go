// Command repro shows, with pgx alone, what becomes of a row when the reply to
// its INSERT or COMMIT is cut off after the server has executed it.
// docs/lost-replies.md says how to run it with any version of pgx.
//
// From v5.9.0 to v5.12.0, statements without arguments, BEGIN and COMMIT go
// through pgconn.MultiResultReader. Its NextResult peeks at the next message
// and ignores the error. The failed peek closes the connection, so the next
// receive returns "conn closed", for which SafeToRetry is true, instead of
// io.ErrUnexpectedEOF. ExecContext of package stdlib turns that into
// driver.ErrBadConn, and database/sql sends the statement again. Older versions
// do not peek, and since v5.13.0 the error is not called safe to retry. In
// lib/pq v1.12.3, conn.handleError turns io.EOF into ErrBadConn, whether or not
// anything was sent.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// network loses one reply on request.
type network struct {
	lose atomic.Bool // the reply to the next INSERT or commit
}

func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, kind, address)
	return &connection{Conn: conn, network: n}, err
}

type connection struct {
	net.Conn
	network *network
	cut     atomic.Bool
}

func (c *connection) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("INSERT")) || bytes.Contains(b, []byte("commit")) {
		c.cut.Store(c.network.lose.Swap(false))
	}
	return c.Conn.Write(b)
}

// Read reads a reply, so that the server has executed the request, and drops
// it.
func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	unreliable := new(network)
	config.DialFunc = unreliable.dial
	db := stdlib.OpenDB(*config)
	defer db.Close()
	if _, err := db.ExecContext(ctx, "DROP TABLE IF EXISTS lost; CREATE TABLE lost (how text)"); err != nil {
		return err
	}

	unreliable.lose.Store(true)
	_, err = db.ExecContext(ctx, "INSERT INTO lost VALUES ('Exec')")
	fmt.Println("Exec of database/sql:", err)

	err = commit(ctx, config, unreliable)
	fmt.Println("Commit of pgx:", err, "- safe to retry:", pgconn.SafeToRetry(err))

	for _, how := range []string{"Exec", "Commit"} {
		var rows int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM lost WHERE how = $1", how).Scan(&rows); err != nil {
			return err
		}
		fmt.Println("rows written by", how+":", rows)
	}
	_, err = db.ExecContext(ctx, "DROP TABLE lost")
	return err
}

// commit writes a row in a transaction whose COMMIT gets no reply.
func commit(ctx context.Context, config *pgx.ConnConfig, unreliable *network) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO lost VALUES ('Commit')"); err != nil {
		return err
	}
	unreliable.lose.Store(true)
	return tx.Commit(ctx)
}
