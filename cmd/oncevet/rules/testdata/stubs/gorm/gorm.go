package gorm

import "context"

type Session struct{ NewDB bool }

type Statement struct{ ConnPool any }

type DB struct {
	Error     error
	Statement *Statement
}

func (*DB) Session(*Session) *DB                   { panic(0) }
func (*DB) WithContext(ctx context.Context) *DB    { panic(0) }
func (*DB) Create(value any) *DB                   { panic(0) }
func (*DB) Transaction(f func(tx *DB) error) error { panic(0) }
