package doctor

import (
	"context"
	"fmt"
	"strings"
)

func mysqlServer(ctx context.Context, e *examination) error {
	version, err := e.text(ctx, "SELECT VERSION()")
	if err != nil {
		return err
	}
	var major, minor, patch int
	fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	number, maria := major*10000+minor*100+patch, strings.Contains(version, "MariaDB")
	if maria && number < 100600 || !maria && number < 80016 {
		e.found("server-version", Unsafe, "The server is "+version+".", "MySQL 8.0.16 or MariaDB 10.6 is required.",
			"Upgrade the server.")
	}
	readonly, err := e.number(ctx, "SELECT @@global.read_only")
	if err != nil {
		return err
	}
	if readonly != 0 {
		e.found("read-only", Unsafe, "The server is read_only.",
			"It is a replica, or about to become one. It sees keys late and accepts no writes.",
			useThePrimary)
	}
	isolation, err := e.text(ctx, "SELECT @@"+map[bool]string{true: "tx_isolation", false: "transaction_isolation"}[maria])
	if err != nil {
		return err
	}
	if isolation == "READ-UNCOMMITTED" {
		e.found("read-uncommitted", Unsafe, "The isolation level is READ UNCOMMITTED.",
			"Reads return data of transactions that may be rolled back later.",
			"Set transaction_isolation to READ-COMMITTED or REPEATABLE-READ.")
	}
	autocommit, err := e.number(ctx, "SELECT @@global.autocommit AND @@session.autocommit")
	if err == nil && autocommit == 0 {
		e.found("autocommit-off", Unsafe, "autocommit is off globally or in this session.",
			"Statements outside a transaction are never committed, so no key is stored.",
			"Set autocommit = 1 in the server and in the DSN of your programs.")
	}
	if err != nil {
		return err
	}
	chained, err := e.number(ctx, "SELECT @@global.completion_type <> 'NO_CHAIN' OR @@session.completion_type <> 'NO_CHAIN'")
	if err == nil && chained != 0 {
		e.found("completion-type", Unsafe, "completion_type is not NO_CHAIN, globally or in this session.",
			"COMMIT begins another transaction, whose statements are never committed, or ends the connection. "+
				"A store checks this only when it first uses a connection.",
			"Set completion_type = NO_CHAIN in the server and in the DSN of your programs.")
	}
	return err
}

func mysqlDurability(ctx context.Context, e *examination) error {
	flush, err := e.number(ctx, "SELECT @@global.innodb_flush_log_at_trx_commit")
	if err != nil {
		return err
	}
	if flush != 1 && flush != 3 { // MariaDB also has 3, which flushes more
		e.found("innodb_flush_log_at_trx_commit", Unsafe, fmt.Sprintf("innodb_flush_log_at_trx_commit is %d.", flush),
			"A crash undoes about the last second of commits. Work whose key is lost runs again.", "Set it to 1.")
	}
	doublewrite, err := e.text(ctx, "SELECT @@global.innodb_doublewrite")
	if err != nil {
		return err
	}
	if doublewrite == "0" || strings.EqualFold(doublewrite, "off") {
		e.found("innodb_doublewrite-off", Warning, "innodb_doublewrite is off.",
			"A crash of the machine can damage pages that are being written.",
			"Set it to 1, unless the file system writes pages atomically.")
	}
	logged, err := e.number(ctx, "SELECT @@global.log_bin")
	if err != nil || logged == 0 {
		return err
	}
	sync, err := e.number(ctx, "SELECT @@global.sync_binlog")
	if err == nil && sync != 1 {
		e.found("sync_binlog", Warning, fmt.Sprintf("The binary log is on, and sync_binlog is %d.", sync),
			"After a crash, replicas may lack commits that the server has. A failover then loses keys.",
			"Set it to 1.")
	}
	return err
}

func mysqlReplica(ctx context.Context, e *examination) error {
	cluster, err := e.texts(ctx,
		"SELECT variable_value FROM information_schema.global_variables "+
			"WHERE variable_name = 'WSREP_ON' AND variable_value = 'ON' AND @@wsrep_sync_wait & 7 <> 7")
	if err == nil && len(cluster) > 0 {
		e.found("galera", Warning, "The server is a node of a Galera cluster, and wsrep_sync_wait is not 7.",
			"A node that is behind returns old records, and settlements that move to it are refused.",
			"Set wsrep_sync_wait = 7 in the server, or in the DSN of this tool and of your programs.")
	} // MySQL has no such table and no Galera
	rows, err := e.Tables.DB.QueryContext(ctx, "SHOW SLAVE STATUS")
	if err != nil {
		if rows, err = e.Tables.DB.QueryContext(ctx, "SHOW REPLICA STATUS"); err != nil {
			return err
		}
	}
	defer rows.Close()
	if rows.Next() {
		e.found("replica", Unsafe, "This server replicates from another.",
			"If it is not the primary, it sees keys late, and work runs twice.",
			useThePrimary)
	}
	return rows.Err()
}

func mysqlTables(ctx context.Context, e *examination) error {
	others, err := e.texts(ctx,
		"SELECT CONCAT(table_name, ' (', engine, ')') FROM information_schema.tables WHERE table_schema = "+
			e.Tables.Names.Database()+" AND LEFT(table_name, CHAR_LENGTH(?)) = ? AND engine <> 'InnoDB'", e.Tables.Names.Prefix(),
		e.Tables.Names.Prefix())
	if err != nil {
		return err
	}
	if len(others) > 0 {
		e.found("engine", Unsafe, "Tables that do not use InnoDB: "+strings.Join(others, ", ")+".",
			"These tables have no transactions, so no promise holds.",
			"Run ALTER TABLE ... ENGINE=InnoDB for each of them.")
	}
	return nil
}

func mysqlIdle(ctx context.Context, e *examination) error {
	idle, err := e.texts(ctx, `SELECT CONCAT('thread ', x.trx_mysql_thread_id, ' for ',
		TIMESTAMPDIFF(SECOND, x.trx_started, NOW()), ' s')
		FROM information_schema.innodb_trx x JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id
		WHERE p.command = 'Sleep' AND x.trx_started < NOW() - INTERVAL 5 MINUTE ORDER BY x.trx_started LIMIT 10`)
	if err != nil {
		return err
	}
	if len(idle) > 0 {
		e.found("idle-transactions", Warning, "Transactions are open but idle: "+strings.Join(idle, ", ")+".",
			"Calls with a key that they claimed wait for them.", "Find the program that leaves them open.")
	}
	return nil
}
