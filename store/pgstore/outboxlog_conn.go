package pgstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// logConn is a connection that PostgreSQL sends its log on.
type logConn struct {
	pg *pgconn.PgConn // until the log flows

	net      net.Conn // from then on
	frontend *pgproto3.Frontend
	writing  sync.Mutex
}

const (
	// logWriteTime is how long a few bytes may take to get into a connection.
	logWriteTime = 10 * time.Second
	// logSilence is how long a server may say nothing, though it was asked: decoding a large transaction can keep it busy.
	logSilence = time.Minute
	// logSign is the longest time between two signs of life.
	logSign = 10 * time.Second
)

// dialLog opens a connection for replication.
func (s *Store) dialLog(ctx context.Context) (*logConn, error) {
	pool := s.pool.Config()
	settings := pool.ConnConfig
	if pool.BeforeConnect != nil { // which may know the password
		if err := pool.BeforeConnect(ctx, settings); err != nil {
			return nil, err
		}
	}
	config := settings.Config.Copy()
	if s.log.server != nil {
		config = s.log.server.Copy()
	}
	if config.RuntimeParams == nil {
		config.RuntimeParams = make(map[string]string)
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = "once_outbox_log" // which must not pass for a standby
	config.RuntimeParams["bytea_output"] = "hex"                 // whatever the role, or the database, has
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.OnNotification, config.OnNotice = nil, nil
	pg, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &logConn{pg: pg}, nil
}

// query runs a statement, or a command of replication, before the log flows.
func (c *logConn) query(ctx context.Context, text string) ([][]byte, error) {
	results, err := c.pg.Exec(ctx, text).ReadAll()
	if err != nil || len(results) == 0 || len(results[0].Rows) == 0 {
		return nil, err
	}
	return results[0].Rows[0], nil
}

// start makes the log flow.
func (c *logConn) start(ctx context.Context, command string) error {
	hijacked, err := c.pg.Hijack()
	if err != nil {
		return err
	}
	c.net, c.frontend = hijacked.Conn, hijacked.Frontend
	if end, bounded := ctx.Deadline(); bounded {
		_ = c.net.SetDeadline(end)
	}
	cut := context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
	if err := c.send(&pgproto3.Query{String: command}); err != nil {
		return err
	}
	for {
		msg, err := c.frontend.Receive()
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.CopyBothResponse:
			if !cut() {
				return ctx.Err()
			}
			return c.net.SetDeadline(time.Time{})
		}
	}
}

func (c *logConn) send(msg pgproto3.FrontendMessage) error {
	text, err := msg.Encode(nil)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.net.SetWriteDeadline(time.Now().Add(logWriteTime)); err != nil {
		return err
	}
	_, err = c.net.Write(text)
	return err
}

// confirm tells the server what it need not send again, and may ask it for a sign of life.
func (c *logConn) confirm(received, done uint64, ask byte) error {
	b := make([]byte, 0, 34)
	b = append(b, 'r')
	b = binary.BigEndian.AppendUint64(b, received)
	b = binary.BigEndian.AppendUint64(b, done)
	b = binary.BigEndian.AppendUint64(b, done)
	b = binary.BigEndian.AppendUint64(b, 0) // our clock, which the server would only show
	return c.send(&pgproto3.CopyData{Data: append(b, ask)})
}

// finish asks the server to end the log.
func (c *logConn) finish() error { return c.send(&pgproto3.CopyDone{}) }

// leave gives up what the session holds, once the log has ended, and ends it.
func (c *logConn) leave(ctx context.Context) error {
	if end, bounded := ctx.Deadline(); bounded {
		if err := c.net.SetReadDeadline(end); err != nil {
			return err
		}
	}
	if err := c.send(&pgproto3.Query{String: `SELECT pg_advisory_unlock_all()`}); err != nil {
		return err
	}
	for {
		msg, err := c.frontend.Receive()
		if err != nil {
			return err
		}
		if _, ready := msg.(*pgproto3.ReadyForQuery); ready {
			return c.send(&pgproto3.Terminate{})
		}
	}
}

// close ends the connection, however far it has come.
func (c *logConn) close() {
	if c.net != nil {
		_ = c.net.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), logWriteTime)
	defer cancel()
	_ = c.pg.Close(ctx)
}

// parsePosition reads a place in the log as PostgreSQL writes it.
func parsePosition(text string) (uint64, error) {
	var high, low uint32
	if _, err := fmt.Sscanf(text, "%X/%X", &high, &low); err != nil {
		return 0, fmt.Errorf("%q is no place in the log: %w", text, err)
	}
	return uint64(high)<<32 | uint64(low), nil
}
