package main

import (
	"context"
	"os"
	"path/filepath"
)

func Example() {
	dir, err := os.MkdirTemp("", "once-orm")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := run(context.Background(), filepath.Join(dir, "shop.db")); err != nil {
		panic(err)
	}
	// Output:
	// placed order-1 4999
	// placed order-1 4999
	// rows: 1
}
