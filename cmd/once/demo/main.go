// Command demo is once demo, alone: it links SQLite, and none of the other drivers and brokers that once can talk to.
// So the first run of it fetches and compiles a third of what once does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/effectively-once/once/cmd/once/internal/demo"
	"github.com/effectively-once/once/cmd/once/internal/democommand"
)

type cli struct {
	Demo   democommand.Command `cmd:"" default:"withargs" help:"Show a payment handler with and without once, under duplicates, races and kills."`
	Worker democommand.Worker  `cmd:"" name:"demo-worker" hidden:"" help:"A worker process of the demo."`
}

// main exits as once demo does.
func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	verb := kong.Parse(&cli{}, kong.Name("demo"), kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(demo.Services()),
		kong.Exit(func(code int) {
			if code != 0 {
				code = 2 // wrong usage
			}
			os.Exit(code)
		}))
	err := verb.Run()
	stop()
	switch {
	case errors.Is(err, democommand.ErrWrong):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(3)
	}
}
