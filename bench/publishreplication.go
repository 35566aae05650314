package main

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/effectively-once/once/broker"
)

// replicate reads the rows of a hand-written outbox from the log, without
// confirming them.
func (l *latencies) replicate(ctx context.Context, to *arrivals) error {
	if _, err := l.pool.Exec(ctx, `DO $$ BEGIN CREATE PUBLICATION hand FOR TABLE hand; EXCEPTION WHEN duplicate_object THEN NULL; END $$`); err != nil {
		return err
	}
	config, err := pgconn.ParseConfig(l.dsn)
	if err != nil {
		return err
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "CREATE_REPLICATION_SLOT hand TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT").ReadAll()
	if err != nil {
		return err
	}
	conn.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT hand LOGICAL 0/0 (proto_version '1', publication_names 'hand')"})
	if err := conn.Frontend().Flush(); err != nil {
		return err
	}
	for {
		message, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyData:
			if id, ok, err := insertedID(m.Data); err != nil {
				return err
			} else if ok {
				to.Publish(ctx, []*broker.Message{{ID: id}})
			}
		}
	}
}

// insertedID returns the second column of an inserted row, after the header of
// a log message.
func insertedID(data []byte) (id string, ok bool, err error) {
	const head, relation = 25, 4
	if len(data) <= head || data[0] != 'w' || data[head] != 'I' {
		return "", false, nil
	}
	rest := data[head+1:]
	if len(rest) < relation+3 {
		return "", false, errShortRow
	}
	rest = rest[relation+3:] // 'N' and the number of columns
	for range 2 {
		if len(rest) < 5 || rest[0] != 't' {
			return "", false, errShortRow
		}
		n := int(binary.BigEndian.Uint32(rest[1:]))
		if len(rest) < 5+n {
			return "", false, errShortRow
		}
		id, rest = string(rest[5:5+n]), rest[5+n:]
	}
	return id, true, nil
}

var errShortRow = errors.New("a row in the log is not as it was written")
