package trial

import (
	"context"
	"database/sql"
)

// Counts runs a query that returns names and numbers.
func Counts(ctx context.Context, db *sql.DB, query string) (map[string]int, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[string]int{}
	for rows.Next() {
		var id sql.NullString
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return nil, err
		}
		found[id.String] += n
	}
	return found, rows.Err()
}
