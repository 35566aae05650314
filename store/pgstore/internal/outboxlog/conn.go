package outboxlog

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// replicationConn is the connection on which PostgreSQL sends its log.
type replicationConn struct {
	pg *pgconn.PgConn // until start

	net      net.Conn // from start on
	frontend *pgproto3.Frontend
	writing  sync.Mutex
}

const (
	// writeTime bounds a write of a few bytes.
	writeTime = 10 * time.Second
	// silenceTime is how long a server may send nothing although it was asked
	// to reply: decoding a large transaction can keep it busy.
	silenceTime = time.Minute
	// keepaliveTime bounds the time between two status messages.
	keepaliveTime = 10 * time.Second
)

// dial opens a connection for replication.
func (l *Log) dial(ctx context.Context) (*replicationConn, error) {
	pool := l.pool.Config()
	settings := pool.ConnConfig
	if pool.BeforeConnect != nil { // it may set the password
		if err := pool.BeforeConnect(ctx, settings); err != nil {
			return nil, err
		}
	}
	config := settings.Config.Copy()
	if l.server != nil {
		config = l.server.Copy()
	}
	if config.RuntimeParams == nil {
		config.RuntimeParams = make(map[string]string)
	}
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = "once_outbox_log" // must not match a name in synchronous_standby_names
	config.RuntimeParams["bytea_output"] = "hex"                 // overrides the setting of the role or database
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.OnNotification, config.OnNotice = nil, nil
	pg, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &replicationConn{pg: pg}, nil
}

// query runs a statement or a replication command, before start. It returns the
// first row.
func (c *replicationConn) query(ctx context.Context, text string) ([][]byte, error) {
	results, err := c.pg.Exec(ctx, text).ReadAll()
	if err != nil || len(results) == 0 || len(results[0].Rows) == 0 {
		return nil, err
	}
	return results[0].Rows[0], nil
}

// start sends the command from which on the server sends the log.
func (c *replicationConn) start(ctx context.Context, command string) error {
	hijacked, err := c.pg.Hijack()
	if err != nil {
		return err
	}
	c.net, c.frontend = hijacked.Conn, hijacked.Frontend
	if end, bounded := ctx.Deadline(); bounded {
		_ = c.net.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.net.SetDeadline(time.Unix(1, 0)) })
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
			if !stop() {
				return ctx.Err()
			}
			return c.net.SetDeadline(time.Time{})
		}
	}
}

func (c *replicationConn) send(msg pgproto3.FrontendMessage) error {
	text, err := msg.Encode(nil)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.net.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	_, err = c.net.Write(text)
	return err
}

// confirm sends a standby status update: the server need not send again what is
// before done. If reply is 1, the server answers.
func (c *replicationConn) confirm(received, done uint64, reply byte) error {
	b := make([]byte, 0, 34)
	b = append(b, 'r')
	b = binary.BigEndian.AppendUint64(b, received)
	b = binary.BigEndian.AppendUint64(b, done)
	b = binary.BigEndian.AppendUint64(b, done)
	b = binary.BigEndian.AppendUint64(b, 0) // our clock, which the server would only show
	return c.send(&pgproto3.CopyData{Data: append(b, reply)})
}

// finish asks the server to stop sending the log.
func (c *replicationConn) finish() error { return c.send(&pgproto3.CopyDone{}) }

// leave releases the locks of the session, and ends it. The log has to have
// ended.
func (c *replicationConn) leave(ctx context.Context) error {
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

// close closes the connection, in whatever state it is.
func (c *replicationConn) close() {
	if c.net != nil {
		_ = c.net.Close()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	_ = c.pg.Close(ctx)
}
