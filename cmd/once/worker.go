package main

import (
	"os"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

type workerCommand struct{}

// Run is a worker process of the demo.
func (workerCommand) Run(services map[string]func(*demo.Shop) demo.Service) error {
	return demo.Work(os.Stdin, os.Stdout, services)
}
