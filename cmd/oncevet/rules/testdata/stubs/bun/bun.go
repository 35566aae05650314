package bun

import (
	"context"
	"database/sql"
)

type DB struct{ *sql.DB }

type Tx struct{ *sql.Tx }

type InsertQuery struct{}

func (*InsertQuery) Exec(ctx context.Context) error { panic(0) }

func NewDB(db *sql.DB, dialect any) *DB { panic(0) }

func (*DB) NewInsert() *InsertQuery { panic(0) }
func (*DB) RunInTx(ctx context.Context, o *sql.TxOptions, f func(context.Context, Tx) error) error {
	panic(0)
}
func (Tx) NewInsert() *InsertQuery { panic(0) }
