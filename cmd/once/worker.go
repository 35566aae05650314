package main

import (
	"os"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

type workerCommand struct{}

// Run is a worker process of the demo.
func (workerCommand) Run(handlers map[string]demo.Handler) error {
	return demo.Work(os.Stdin, os.Stdout, handlers)
}
