package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/show"
	"github.com/effectively-once/once/store/pgstore"
)

const useThePrimary = "Connect every program that works with keys to the primary only."

func postgresServer(ctx context.Context, e *examination) error {
	version, err := e.number(ctx, "SELECT current_setting('server_version_num')::int")
	if err != nil {
		return err
	}
	if version < 130000 {
		e.found("server-version", Unsafe, fmt.Sprintf("PostgreSQL is version %d.", version/10000),
			"PostgreSQL 13 or later is required.",
			"Upgrade the server.")
	}
	encoding, err := e.text(ctx, "SHOW server_encoding")
	if err != nil {
		return err
	}
	if encoding != "UTF8" {
		e.found("server-encoding", Unsafe, "The encoding of the database is "+encoding+".",
			"Keys with characters that this encoding lacks cannot be stored.",
			"Use a database with the encoding UTF8.")
	}
	replica, err := e.text(ctx, "SELECT pg_is_in_recovery()::text")
	if err != nil {
		return err
	}
	if replica == "true" {
		e.found("replica", Unsafe, "This server is a standby.",
			"It sees keys late and accepts no writes. Work that relies on it runs twice.", useThePrimary)
		return nil
	}
	readonly, err := e.text(ctx, "SHOW transaction_read_only")
	if err == nil && readonly == "on" {
		e.found("read-only", Unsafe, "Transactions of this role are read-only.", "It cannot claim keys.",
			"Check default_transaction_read_only of the server, the database and the role. Ignore this for a role that only reads.")
	}
	return err
}

func postgresDurability(ctx context.Context, e *examination) error {
	for name, means := range map[string]string{
		"fsync":              "A crash of the machine can damage the database or undo commits, and their work runs again.",
		"full_page_writes":   "A crash of the machine can damage pages that are being written.",
		"synchronous_commit": "A crash of the server undoes the last commits. Work whose key is lost runs again.",
	} {
		value, err := e.text(ctx, "SELECT current_setting($1)", name)
		if err != nil {
			return err
		}
		if value == "off" {
			e.found(name+"-off", Unsafe, name+" is off.", means, "Set "+name+" = on for this role and the roles of your programs.")
		}
	}
	others, err := e.texts(ctx, `SELECT coalesce(r.rolname, 'every role') || ' in ' || coalesce(d.datname, 'every database')
		FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase
		WHERE EXISTS (SELECT FROM unnest(s.setconfig) AS one WHERE lower(one) ~ '^synchronous_commit=(off|false|no|0)$')
		AND (s.setdatabase = 0 OR d.datname = current_database()) LIMIT 20`)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		e.found("synchronous_commit-off-for-roles", Unsafe, "synchronous_commit is off for "+strings.Join(others, ", ")+".",
			"If one of these roles works with keys, a crash of the server undoes its last commits, and the work runs again.",
			"Run ALTER ROLE ... RESET synchronous_commit for the roles that work with keys.")
	}
	return nil
}

const idleTooLong = "5 minutes"

func postgresIdle(ctx context.Context, e *examination) error {
	idle, err := e.texts(ctx, `SELECT format('pid %s of %s for %s s', pid, usename, extract(epoch FROM now() - xact_start)::bigint)
		FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'
		AND xact_start < now() - interval '`+idleTooLong+`' ORDER BY xact_start LIMIT 10`)
	if err != nil {
		return err
	}
	if len(idle) > 0 {
		e.found("idle-transactions", Warning, "Transactions are open but idle: "+strings.Join(idle, ", ")+".",
			"Keys that they claimed look busy, and vacuum cannot remove dead rows.",
			"Find the program that leaves them open. idle_in_transaction_session_timeout ends idle transactions.")
	}
	prepared, err := e.number(ctx,
		"SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND prepared < now() - interval '"+
			idleTooLong+"'")
	if err == nil && prepared > 0 {
		e.found("prepared-transactions", Warning, fmt.Sprintf("%s older than %s.", show.Count(prepared,
			"prepared transaction is", "prepared transactions are"), idleTooLong),
			"They hold their locks until they are ended, even across restarts.",
			"List them in pg_prepared_xacts, and run COMMIT PREPARED or ROLLBACK PREPARED for each.")
	}
	return err
}

const muchLog = 1 << 30

func postgresLog(ctx context.Context, e *examination) error {
	log, ok := once.As[interface {
		OutboxSlot(context.Context) (pgstore.Slot, error)
	}](e.Store)
	if !e.Tables.Logged || !ok {
		return nil
	}
	level, err := e.text(ctx, "SHOW wal_level")
	if err != nil {
		return err
	}
	if level != "logical" {
		e.found("wal-level", Unsafe, "wal_level is "+level+".",
			"The outbox is read by logical decoding, which needs wal_level logical. No message is published.",
			"Set wal_level = logical and restart the server.")
		return nil
	}
	slot, err := log.OutboxSlot(ctx)
	if errors.Is(err, once.ErrInvalid) {
		e.found("slot-missing", Warning, err.Error(), "No message is read from the log yet.", "Start a relay.")
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case slot.Status == "lost":
		e.found("slot-lost", Unsafe, "The replication slot "+slot.Name+" is lost.",
			"PostgreSQL removed WAL that was not read. Messages that were only in the log are lost.",
			"Call ResetOutboxSlot and put the messages again that were not published, see docs/outbox-log.md.")
	case !slot.Ready:
		e.found("slot-waiting", Warning, "The replication slot "+slot.Name+" is being created.",
			"PostgreSQL waits for all transactions that were open. Until they end, no message is read from the log, and messages that are only in the log cannot be put.",
			"End the oldest transaction: see xact_start in pg_stat_activity.")
		return nil
	case slot.Status == "unreserved":
		e.found("slot-unreserved", Unsafe, "The replication slot "+slot.Name+" may be lost at the next checkpoint.",
			"It retains more WAL than max_slot_wal_keep_size.", "Start a relay now, or raise max_slot_wal_keep_size now.")
	case slot.Retained > muchLog:
		e.found("slot-behind", Warning, "PostgreSQL retains "+show.Bytes(slot.Retained)+" of WAL for the slot "+slot.Name+".",
			"No relay reads it, or not fast enough. The disk fills up, or the slot is lost.", "Check the log of the relays.")
	}
	if !slot.Active {
		e.found("slot-idle", Warning, "No relay reads the replication slot "+slot.Name+".", "No message is published.",
			"Start a relay.")
	}
	return nil
}
