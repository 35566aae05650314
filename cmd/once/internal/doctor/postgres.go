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

const useThePrimary = "Let every program that works with keys connect to the primary, and only to it."

func postgresServer(ctx context.Context, e *examination) error {
	version, err := e.number(ctx, "SELECT current_setting('server_version_num')::int")
	if err != nil {
		return err
	}
	if version < 130000 {
		e.found("server-version", Unsafe, fmt.Sprintf("PostgreSQL is version %d.", version/10000),
			"It is older than 13, which pgstore needs.",
			"Upgrade the server.")
	}
	encoding, err := e.text(ctx, "SHOW server_encoding")
	if err != nil {
		return err
	}
	if encoding != "UTF8" {
		e.found("server-encoding", Unsafe, "The encoding of the database is "+encoding+".",
			"Keys with other characters cannot be kept.",
			"Use a database in UTF8.")
	}
	replica, err := e.text(ctx, "SELECT pg_is_in_recovery()::text")
	if err != nil {
		return err
	}
	if replica == "true" {
		e.found("replica", Unsafe, "This server is a standby.",
			"It shows keys late, so that work is run twice, and takes no writes.", useThePrimary)
		return nil
	}
	readonly, err := e.text(ctx, "SHOW transaction_read_only")
	if err == nil && readonly == "on" {
		e.found("read-only", Unsafe, "Transactions of this role are read-only.", "No key can be claimed by it.",
			"See default_transaction_read_only of the server, the database and the role. It is fine for a role that only looks.")
	}
	return err
}

func postgresDurability(ctx context.Context, e *examination) error {
	for name, means := range map[string]string{
		"fsync":              "A crash of the machine damages the database, or undoes commits, and their work runs again.",
		"full_page_writes":   "A crash of the machine may damage pages that were just being written.",
		"synchronous_commit": "A crash of the server undoes the last commits: work whose key is forgotten runs again.",
	} {
		value, err := e.text(ctx, "SELECT current_setting($1)", name)
		if err != nil {
			return err
		}
		if value == "off" {
			e.found(name+"-off", Unsafe, name+" is off.", means, "Set "+name+" = on, for this role and those of your programs.")
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
			"If one of them works with keys: a crash of the server undoes its last commits, and the work runs again.",
			"ALTER ROLE ... RESET synchronous_commit for those that do.")
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
		e.found("idle-transactions", Warning, "Transactions are open and do nothing: "+strings.Join(idle, ", ")+".",
			"Keys that they have claimed look busy, and nothing that was deleted is cleared away meanwhile.",
			"Find out which program leaves them open. idle_in_transaction_session_timeout ends such transactions.")
	}
	prepared, err := e.number(ctx,
		"SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND prepared < now() - interval '"+
			idleTooLong+"'")
	if err == nil && prepared > 0 {
		e.found("prepared-transactions", Warning, fmt.Sprintf("%s older than %s.", show.Count(prepared,
			"prepared transaction is", "prepared transactions are"), idleTooLong),
			"They hold their locks for ever, through restarts.",
			"See pg_prepared_xacts, and COMMIT PREPARED or ROLLBACK PREPARED each.")
	}
	return err
}

const muchLog = 1 << 30

func postgresLog(ctx context.Context, e *examination) error {
	log, ok := e.Store.(interface {
		OutboxSlot(context.Context) (pgstore.Slot, error)
	})
	if !e.Logged || !ok {
		return nil
	}
	level, err := e.text(ctx, "SHOW wal_level")
	if err != nil {
		return err
	}
	if level != "logical" {
		e.found("wal-level", Unsafe, "wal_level is "+level+".",
			"The outbox is to be read from the log, which has not what that needs: no message goes out.",
			"Set wal_level = logical, and restart the server.")
		return nil
	}
	slot, err := log.OutboxSlot(ctx)
	if errors.Is(err, once.ErrInvalid) {
		e.found("slot-missing", Warning, err.Error(), "Nothing is read from the log yet.", "Start a relay.")
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case slot.Status == "lost":
		e.found("slot-lost", Unsafe, "The replication slot "+slot.Name+" is lost.",
			"PostgreSQL has thrown away log that nobody had read. Messages that were only in the log are gone.",
			"See docs/outbox-log.md: ResetOutboxSlot, and put again what was not published.")
	case !slot.Ready:
		e.found("slot-waiting", Warning, "The replication slot "+slot.Name+" is being made.",
			"PostgreSQL waits for all transactions that were open. Until they end, nothing is read from the log, and nothing can be put that is in the log only.",
			"End the oldest: see xact_start in pg_stat_activity.")
		return nil
	case slot.Status == "unreserved":
		e.found("slot-unreserved", Unsafe, "The replication slot "+slot.Name+" may be lost at the next checkpoint.",
			"Its log is longer than max_slot_wal_keep_size.", "Get a relay to run now, or raise max_slot_wal_keep_size at once.")
	case slot.Retained > muchLog:
		e.found("slot-behind", Warning, "PostgreSQL keeps "+show.Bytes(slot.Retained)+" of log for the slot "+slot.Name+".",
			"Nobody reads it fast enough, or nobody at all. The disk fills up, or the slot is lost.", "Look at the relays' log.")
	}
	if !slot.Active {
		e.found("slot-idle", Warning, "Nobody reads the replication slot "+slot.Name+".", "No message goes out.",
			"Start a relay.")
	}
	return nil
}
