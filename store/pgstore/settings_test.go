package pgstore_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/effectively-once/once/store/pgstore"
	"github.com/effectively-once/once/store/storetest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// unusual are settings that change how values are written and read, and what
// statements do.
func unusual(cfg *pgxpool.Config) {
	for name, value := range map[string]string{
		"bytea_output": "escape", "timezone": "Asia/Tokyo", "DateStyle": "German", "IntervalStyle": "sql_standard",
		"extra_float_digits": "-15", "backslash_quote": "on", "quote_all_identifiers": "on", "transform_null_equals": "on",
		"default_transaction_deferrable": "on", "plan_cache_mode": "force_generic_plan", "row_security": "off", "lock_timeout": "10s",
		"search_path": "pg_temp",
	} {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
}

// A part of the suite passes under such settings, with each protocol of pgx.
func TestSettingsOfASessionMakeNoDifference(t *testing.T) {
	for _, exec := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(exec.String(), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, unusual, mode(exec))
			ran := 0
			for _, c := range storetest.TxCases(t, harness(f, func(t testing.TB) *pgstore.Store { return f.again(t, unusual, mode(exec)) })) {
				group, name, _ := strings.Cut(c.Name, "/")
				if slices.Contains([]string{"race", "do", "dotx", "flight"}, group) || slices.Contains([]string{"race", "largest-page"}, name) {
					continue
				}
				ran++
				if err := c.Check(t.Context()); err != nil {
					t.Errorf("%s: %v\nthe rule: %s", c.Name, err, c.Rule)
				}
			}
			if ran < 60 {
				t.Errorf("only %d cases ran", ran)
			}
		})
	}
}
