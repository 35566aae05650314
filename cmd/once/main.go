// Command once inspects and operates stores of package once. See once --help.
package main

import (
	"os"

	"github.com/effectively-once/once/cmd/once/internal/demo"
)

func main() {
	os.Exit(run(os.Args[1:], demo.Services()))
}
