package democommand

import (
	"os"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

// Worker is the command line of a worker process, which the demo starts.
type Worker struct{}

// Run runs a worker process of the demo.
func (Worker) Run(services map[string]func(*demo.Shop) demo.Service) error {
	return demo.Work(os.Stdin, os.Stdout, services)
}
