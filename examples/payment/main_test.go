package main

import (
	"context"
	"os"
	"path/filepath"
)

func Example() {
	dir, err := os.MkdirTemp("", "once-payment")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := run(context.Background(), filepath.Join(dir, "shop.db")); err != nil {
		panic(err)
	}
	// Output:
	// charged 4999 under 7468f13c-b739-8937-b827-b7d6f5bb5884
	// delivery 1: "", disk full
	// delivery 2: "receipt for order-1", <nil>
	// delivery 3: "receipt for order-1", <nil>
}
