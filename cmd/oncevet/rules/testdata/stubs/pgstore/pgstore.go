// Package pgstore has what the tests need of the package of this name.
package pgstore

import (
	"github.com/effectively-once/once"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type Options struct{}

type Store struct{ once.TxStore[pgx.Tx] }

func New(pool *pgxpool.Pool, o *Options) *Store { panic(0) }
