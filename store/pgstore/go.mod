module github.com/effectively-once/once/store/pgstore

go 1.25.0

require (
	github.com/effectively-once/once v0.0.0
	github.com/jackc/pgx/v5 v5.13.0 // v5.12.0 ran an autocommit statement twice after its reply was lost
	github.com/jackc/puddle/v2 v2.2.3
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	golang.org/x/sync v0.22.0 // indirect
	golang.org/x/text v0.41.0 // indirect
)

replace github.com/effectively-once/once => ../..
