// Command once shows and operates what package once does. See once --help.
package main

import (
	"os"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

func main() {
	os.Exit(run(os.Args[1:], demo.Services()))
}
