package proof

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var thread = regexp.MustCompile(`(?m)^(?:MariaDB|MySQL) thread id (\d+),`)

// ThreadsThatWait returns the threads of MariaDB that wait for a lock of InnoDB.
//
// It reads the report of the engine. The table INNODB_TRX has the same, but it
// is a copy that is made anew only if nobody has read it for a tenth of a
// second: tests that poll it side by side would see the old one for ever.
func ThreadsThatWait(ctx context.Context, db *sql.DB) ([]int64, error) {
	var kind, name, report string
	if err := db.QueryRowContext(ctx, "SHOW ENGINE INNODB STATUS").Scan(&kind, &name, &report); err != nil {
		return nil, err
	}
	_, transactions, _ := strings.Cut(report, "\nLIST OF TRANSACTIONS")
	var threads []int64
	for _, tx := range strings.Split(transactions, "\n---TRANSACTION ") {
		id := thread.FindStringSubmatch(tx)
		if id == nil || !strings.Contains(tx, "\nLOCK WAIT ") {
			continue
		}
		n, err := strconv.ParseInt(id[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the report of InnoDB: %w", err)
		}
		threads = append(threads, n)
	}
	return threads, nil
}
