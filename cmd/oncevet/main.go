// Command oncevet finds mistakes in code that uses package once, such as a
// request to another system inside a transaction. It reports only what it is
// sure about.
//
//	go install github.com/effectively-once/once/cmd/oncevet@latest
//	go vet -vettool=$(which oncevet) ./...
//
// Or alone, which can also apply the suggested fixes:
//
//	oncevet ./...
//	oncevet -fix ./...
//
// The flag -txpool=false turns the rule txpool off, and -txpool runs no other;
// oncevet help lists the rules, and docs/vet.md explains them. Test files and
// generated files are not checked. A comment on the line of a finding, or on the
// line above it, silences it and says why:
//
//	//nolint:txpool // the rates are in another database
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/effectively-once/once/cmd/oncevet/rules"
)

func main() { multichecker.Main(rules.Analyzers()...) }
