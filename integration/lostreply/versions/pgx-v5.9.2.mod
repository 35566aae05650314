// The modules of ../go.mod that package lostreply needs, with other versions of the drivers. See versions_test.go.
module github.com/effectively-once/once/integration

go 1.26.0

require (
	github.com/effectively-once/once v0.0.0
	github.com/effectively-once/once/store/pgstore v0.0.0
	github.com/go-sql-driver/mysql v1.8.1
	github.com/jackc/pgx/v5 v5.13.0
	github.com/lib/pq v1.10.0
)

require (
	filippo.io/edwards25519 v1.1.0 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace (
	github.com/effectively-once/once => ../
	github.com/effectively-once/once/store/pgstore => ../store/pgstore
	github.com/jackc/pgx/v5 => github.com/jackc/pgx/v5 v5.9.2
)
