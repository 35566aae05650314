package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/effectively-once/once/store/pgstore"
)

// sizeStages hold the contest of claims in tables of different sizes.
func sizeStages() []stage {
	return []stage{{name: "claims by size of the table", loads: workers(1, 8), open: func(ctx context.Context, b *bench) (*arena, error) {
		if b.short {
			return openSizes(ctx, b, 10_000, 100_000)
		}
		return openSizes(ctx, b, 100_000, 1_000_000)
	}}}
}

func openSizes(ctx context.Context, b *bench, sizes ...int) (*arena, error) {
	p, err := openPostgres(ctx, b, setting{name: "fast disk"})
	if err != nil {
		return nil, err
	}
	var variants []variant
	for i, size := range sizes {
		prefix := fmt.Sprintf("t%d_", i)
		store := pgstore.New(p.pool, &pgstore.Options{Schema: "once", Prefix: prefix})
		err := store.Migrate(ctx)
		if err == nil {
			err = fill(ctx, p, b, prefix, size)
		}
		if err != nil {
			p.close()
			return nil, err
		}
		variants = append(variants, repeated("Claim, "+plural(size, "row"), func(ctx context.Context) error {
			_, err := store.Claim(ctx, newRequest())
			return err
		}))
	}
	return &arena{close: p.close, contest: func(load) contest {
		return contest{unit: "claim", variants: variants, latency: true}
	}}, nil
}

// fillSQL inserts keys that are done. The indexes exist already, so that they
// look as after as many claims.
const fillSQL = `WITH ids AS MATERIALIZED (SELECT gen_random_uuid()::text AS id FROM generate_series(1, $1::int)),
keys AS MATERIALIZED (SELECT id, substring(sha256('once.key.1'::bytea || int8send(0) || int8send(4) || 'fill'::bytea ||
	int8send(36) || convert_to(id, 'UTF8')), 1, 16) AS h FROM ids)
INSERT INTO once.%srecord (key, scope, operation, id, status, attempt, owner, outcome, content_type,
	outcome_until, key_until, due, created, updated)
SELECT encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid,
	'', 'fill', id, 4, 1, gen_random_uuid(), '{}', 'application/json', $2::bigint, $2::bigint, $2::bigint, 0, 0
FROM keys`

// distantFuture and distantPast are times in microseconds at which a key is
// forgotten.
const distantFuture, distantPast = int64(1) << 60, int64(1)

func fill(ctx context.Context, p *postgres, b *bench, prefix string, rows int) error {
	if _, err := p.pool.Exec(ctx, fmt.Sprintf(fillSQL, prefix), rows, distantFuture); err != nil {
		return err
	}
	for _, statement := range []string{fmt.Sprintf("VACUUM ANALYZE once.%srecord", prefix), "CHECKPOINT"} {
		if _, err := p.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return noteIndexes(ctx, p, b, prefix, rows)
}

// noteIndexes notes the bytes per row of each index.
func noteIndexes(ctx context.Context, p *postgres, b *bench, prefix string, rows int) error {
	answer, err := p.pool.Query(ctx, `SELECT indexrelid::regclass::text, pg_relation_size(indexrelid)
FROM pg_index WHERE indrelid = $1::text::regclass ORDER BY indexrelid`, "once."+prefix+"record")
	if err != nil {
		return err
	}
	type index struct {
		Name  string
		Bytes int64
	}
	found, err := pgx.CollectRows(answer, pgx.RowToStructByPos[index])
	if err != nil {
		return err
	}
	var parts []string
	var total int64
	for _, i := range found {
		total += i.Bytes
		parts = append(parts, fmt.Sprintf("%s %d", strings.TrimPrefix(i.Name, "once."+prefix), i.Bytes/int64(rows)))
	}
	b.report.note("%s: %d bytes of indexes per row (%s)", plural(rows, "row"), total/int64(rows), strings.Join(parts, ", "))
	return nil
}
