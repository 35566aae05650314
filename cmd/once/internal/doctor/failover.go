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
	losesMeans = "If one of them takes over, it may lack the last commits: work whose key is forgotten runs again."
	compare    = "Compare that time with what the other systems have done, before work is sent again: see " +
		"docs/operating.md, after a failover."
	recentFailover = 7 * 24 * time.Hour // in which it is more than something to know
)

func postgresFailover(ctx context.Context, e *examination) error {
	replica, err := e.text(ctx, "SELECT pg_is_in_recovery()::text")
	if err != nil || replica == "true" { // which was said
		return err
	}
	if err := postgresStandbys(ctx, e); err != nil {
		return err
	}
	return postgresPromotion(ctx, e)
}

// postgresStandbys says whether a commit waits until a standby has it. Who reads the log for its messages, or for an archive,
// is none.
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
		e.found("failover-loses-commits", Warning, fmt.Sprintf("Standbys are fed (%d), and no commit waits for one.", standbys),
			losesMeans, "Set synchronous_standby_names, or look at the last keys by hand after a failover.")
	case names != "" && commit == "local":
		e.found("failover-loses-commits", Warning, "synchronous_standby_names is set, and synchronous_commit is local.",
			"No commit of this role waits for a standby. "+losesMeans, "Set synchronous_commit = on.")
	case names != "" && commit == "remote_write":
		e.found("failover-loses-commits", Warning, "synchronous_standby_names is set, and synchronous_commit is remote_write.",
			"A commit does not wait for the disk of the standby: if both machines fail, the last commits are lost, and work whose "+
				"key is forgotten runs again.", "Set synchronous_commit = on.")
	}
	return err
}

// postgresPromotion finds out whether the server was promoted, or restored, and between which commits: the first is the
// last that it got from the primary before it, the second is when it began a timeline of its own.
func postgresPromotion(ctx context.Context, e *examination) error {
	file, err := e.text(ctx, "SELECT pg_walfile_name(pg_current_wal_lsn())")
	if err != nil {
		return err
	}
	timeline, err := strconv.ParseInt(file[:min(8, len(file))], 16, 64) // the first eight of its digits
	if err != nil || timeline <= 1 {
		return err
	}
	var since, last sql.NullTime
	err = e.DB.QueryRowContext(ctx, "SELECT max(modification) FROM pg_ls_waldir() WHERE name = $1",
		fmt.Sprintf("%08X.history", timeline)).Scan(&since)
	if err != nil {
		since.Valid = false // for the lack of a right: that it was promoted is known all the same
	}
	if err := e.DB.QueryRowContext(ctx, "SELECT pg_last_xact_replay_timestamp()").Scan(&last); err != nil {
		return err
	}
	severity, when := Note, "When that was cannot be seen from here: a role in pg_monitor can, while the server has the file."
	if since.Valid {
		when = "It became the primary at " + stamp(since.Time) + "."
		if time.Since(since.Time) < recentFailover {
			severity = Warning
		}
	}
	from := "Commits that it had not got from the server before it are missing; from when on cannot be seen any more."
	if last.Valid && (!since.Valid || last.Time.Before(since.Time.Add(time.Second))) { // files have whole seconds
		from = "The last commit that it got from the server before it is of " + stamp(last.Time) + ": what was committed there " +
			"after that is missing."
	}
	e.found("failover-happened", severity, fmt.Sprintf("The server is on timeline %d: it was promoted, or restored. %s", timeline, when),
		from+" Work whose key is forgotten runs again.", compare)
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func mysqlFailover(ctx context.Context, e *examination) error {
	logged, err := e.number(ctx, "SELECT @@global.log_bin")
	if err != nil || logged == 0 { // no replica is fed, and no log tells of other servers
		return err
	}
	if err := mysqlStandbys(ctx, e); err != nil {
		return err
	}
	version, err := e.text(ctx, "SELECT VERSION()")
	if err != nil {
		return err
	}
	variable := "gtid_executed"
	if strings.Contains(version, "MariaDB") {
		variable = "gtid_binlog_state"
	}
	state, err := e.text(ctx, "SELECT @@global."+variable)
	if err != nil {
		return err
	}
	if all := sources(state); len(all) > 1 {
		e.found("failover-happened", Note, "The binary log has transactions of several servers: "+strings.Join(all, ", ")+".",
			"One of them was the primary before this one, or this one was restored from its backup. Commits that it had not got are "+
				"missing, and work whose key is forgotten runs again. When that was cannot be seen from here.", compare)
	}
	return nil
}

// mysqlStandbys says whether a commit waits until a replica has it. Who has not the right PROCESS sees no replicas.
func mysqlStandbys(ctx context.Context, e *examination) error {
	replicas, err := e.number(ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
	if err != nil || replicas == 0 {
		return err
	}
	return e.semiSync(ctx, replicas)
}

// semiSync looks at settings under the names that they have in MariaDB, and in MySQL of one age or another.
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
		e.found("failover-loses-commits", Warning, fmt.Sprintf("Replicas are fed (%d), and %s.", replicas, what), losesMeans,
			"Use semi-synchronous replication with AFTER_SYNC and a long timeout, or look at the last keys by hand after a failover.")
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
		return "no commit waits for one now: semi-synchronous replication has given up on them", false
	case point != "" && point != "AFTER_SYNC":
		return "others see commits before a replica has them: the wait point of semi-synchronous replication is " + point, false
	}
	return "", true
}

// settings are names in small letters, with their values.
func (e *examination) settings(ctx context.Context, query string) (map[string]string, error) {
	rows, err := e.DB.QueryContext(ctx, query)
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

// sources are the servers in a set of GTIDs: 0-1-100,0-2-7 of MariaDB, and UUID:1-100,UUID:1-7 of MySQL.
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
