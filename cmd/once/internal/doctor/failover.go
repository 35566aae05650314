package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	losesMeans = "If a standby takes over, it may lack the last commits. Work whose key is lost runs again."
	compare    = "Before work is sent again, compare with what the other systems did since then: see docs/operating.md, " +
		"after a failover."
	recentFailover = 7 * 24 * time.Hour // older failovers are only worth a note
)

func postgresFailover(ctx context.Context, e *examination) error {
	replica, err := e.text(ctx, "SELECT pg_is_in_recovery()::text")
	if err != nil || replica == "true" { // the replication check reports replicas
		return err
	}
	if err := postgresStandbys(ctx, e); err != nil {
		return err
	}
	return postgresPromotion(ctx, e)
}

// postgresStandbys reports whether a commit waits for a standby. Readers of the
// log for messages or an archive are not standbys.
func postgresStandbys(ctx context.Context, e *examination) error {
	standbys, err := e.number(ctx, `SELECT count(*) FROM pg_stat_replication r WHERE state IS DISTINCT FROM 'backup'
		AND coalesce(application_name, '') NOT IN ('pg_receivewal', 'barman_receive_wal')
		AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')`)
	if err != nil {
		return err
	}
	names, err := e.text(ctx, "SELECT current_setting('synchronous_standby_names')")
	if err != nil {
		return err
	}
	commit, err := e.text(ctx, "SELECT current_setting('synchronous_commit')")
	switch {
	case err != nil:
		return err
	case names == "" && standbys > 0:
		e.found("failover-loses-commits", Warning, fmt.Sprintf("Standbys are connected (%d), but no commit waits for one.", standbys),
			losesMeans, "Set synchronous_standby_names, or check the last keys by hand after each failover.")
	case names != "" && commit == "local":
		e.found("failover-loses-commits", Warning, "synchronous_standby_names is set, but synchronous_commit is local.",
			"No commit of this role waits for a standby. "+losesMeans, "Set synchronous_commit = on.")
	case names != "" && commit == "remote_write":
		e.found("failover-loses-commits", Warning, "synchronous_standby_names is set, but synchronous_commit is remote_write.",
			"A commit does not wait for the disk of the standby. If both machines fail, the last commits are lost, and work whose "+
				"key is lost runs again.", "Set synchronous_commit = on.")
	}
	return err
}

// postgresPromotion finds out whether the server was promoted or restored, and
// between which commits: the last one received from the previous primary, and
// the beginning of its own timeline.
func postgresPromotion(ctx context.Context, e *examination) error {
	file, err := e.text(ctx, "SELECT pg_walfile_name(pg_current_wal_lsn())")
	if err != nil {
		return err
	}
	timeline, err := strconv.ParseInt(file[:min(8, len(file))], 16, 64) // the first eight digits
	if err != nil || timeline <= 1 {
		return err
	}
	var since, last sql.NullTime
	err = e.Tables.DB.QueryRowContext(ctx, "SELECT max(modification) FROM pg_ls_waldir() WHERE name = $1",
		fmt.Sprintf("%08X.history", timeline)).Scan(&since)
	if err != nil {
		since.Valid = false // without the right to read it, the promotion itself is still known
	}
	if err := e.Tables.DB.QueryRowContext(ctx, "SELECT pg_last_xact_replay_timestamp()").Scan(&last); err != nil {
		return err
	}
	severity, when := Note, "The time is not known: reading it needs a role in pg_monitor, and the server may have removed the file."
	if since.Valid {
		when = "It became the primary at " + stamp(since.Time) + "."
		if time.Since(since.Time) < recentFailover {
			severity = Warning
		}
	}
	from := "Commits that it had not received from the previous primary are missing. Their time can no longer be determined."
	if last.Valid && (!since.Valid || last.Time.Before(since.Time.Add(time.Second))) { // file times have whole seconds
		from = "The last commit that it received from the previous primary is of " + stamp(last.Time) + ". Later commits there " +
			"are missing."
	}
	e.found("failover-happened", severity, fmt.Sprintf("The server is on timeline %d: it was promoted or restored. %s", timeline, when),
		from+" Work whose key is lost runs again.", compare)
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func mysqlFailover(ctx context.Context, e *examination) error {
	logged, err := e.number(ctx, "SELECT @@global.log_bin")
	if err != nil || logged == 0 { // no replica is fed, and the log names no other server
		return err
	}
	version, err := e.text(ctx, "SELECT VERSION()")
	if err != nil {
		return err
	}
	// MySQL replaces information_schema.processlist, which fails if a session sends
	// a statement that is not text.
	variable, dumps := "gtid_executed", "performance_schema.threads WHERE processlist_command"
	if strings.Contains(version, "MariaDB") {
		variable, dumps = "gtid_binlog_state", "information_schema.processlist WHERE command"
	}
	if err := mysqlStandbys(ctx, e, dumps); err != nil {
		return err
	}
	state, err := e.text(ctx, "SELECT @@global."+variable)
	if err != nil {
		return err
	}
	if all := sources(state); len(all) > 1 {
		e.found("failover-happened", Note, "The binary log contains transactions of several servers: "+strings.Join(all, ", ")+".",
			"One of them was the primary before this one, or this one was restored from a backup of it. Commits that this server "+
				"had not received are missing. Work whose key is lost runs again. The time is not known.", compare)
	}
	return nil
}

// mysqlStandbys reports whether a commit waits for a replica. Without the
// privilege PROCESS no replicas are visible.
func mysqlStandbys(ctx context.Context, e *examination, dumps string) error {
	replicas, err := e.number(ctx, "SELECT COUNT(*) FROM "+dumps+" LIKE 'Binlog Dump%'")
	if err != nil || replicas == 0 {
		return err
	}
	return e.semiSync(ctx, replicas)
}

// semiSync reads settings under their names in MariaDB and in old and new
// versions of MySQL.
func (e *examination) semiSync(ctx context.Context, replicas int64) error {
	values, err := e.settings(ctx, "SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_%'")
	if err != nil {
		return err
	}
	status, err := e.settings(ctx, "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%'")
	if err != nil {
		return err
	}
	if what, waits := semiSync(values, status); !waits {
		e.found("failover-loses-commits", Warning, fmt.Sprintf("Replicas are connected (%d), but %s.", replicas, what), losesMeans,
			"Use semi-synchronous replication with AFTER_SYNC and a long timeout, or check the last keys by hand after each failover.")
	}
	return nil
}

func semiSync(variables, status map[string]string) (what string, waits bool) {
	value := func(of map[string]string, name string) string {
		for _, side := range []string{"source", "master"} {
			if v, ok := of["rpl_semi_sync_"+side+"_"+name]; ok {
				return strings.ToUpper(v)
			}
		}
		return ""
	}
	switch point := value(variables, "wait_point"); {
	case value(variables, "enabled") != "ON":
		return "no commit waits for one", false
	case value(status, "status") != "ON":
		return "no commit waits for one now, because semi-synchronous replication timed out", false
	case point != "" && point != "AFTER_SYNC":
		return "commits are visible before a replica has them, because the wait point of semi-synchronous replication is " + point, false
	}
	return "", true
}

// settings returns settings by lower-case name.
func (e *examination) settings(ctx context.Context, query string) (map[string]string, error) {
	rows, err := e.Tables.DB.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		all[strings.ToLower(name)] = value
	}
	return all, rows.Err()
}

// sources returns the servers in a set of GTIDs, such as 0-1-100,0-2-7
// (MariaDB) or UUID:1-100,UUID:1-7 (MySQL).
func sources(set string) (all []string) {
	for one := range strings.SplitSeq(set, ",") {
		one = strings.TrimSpace(one)
		server, _, mysql := strings.Cut(one, ":")
		if parts := strings.Split(one, "-"); !mysql && len(parts) == 3 {
			server = parts[1]
		}
		if server != "" && !slices.Contains(all, server) {
			all = append(all, server)
		}
	}
	return all
}
