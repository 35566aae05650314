// Package silence silences findings.
package silence

import (
	"github.com/effectively-once/once"
	"github.com/google/uuid"
)

var pay = &once.Operation[string]{Name: "pay"}

func keys() {
	pay.For(uuid.NewString()) //nolint:unstablekey // each run of this command is work of its own
	pay.For(uuid.NewString()) //nolint:oncevet,errcheck // the same, for all rules
	//nolint:unstablekey // on the line above
	pay.For(uuid.NewString())
	pay.For(uuid.NewString()) //nolint:txpool // another rule // want `unstablekey: the key contains uuid.NewString`
	pay.For(uuid.NewString()) // nolint is not a directive here // want `unstablekey: the key contains uuid.NewString`

	/* want +2 `a nolint comment needs a reason: //nolint:unstablekey // why` */
	//nolint:unstablekey
	pay.For(uuid.NewString())
}

func newID() string {
	return uuid.NewString() //nolint:unstablekey // for all who call it
}

func helpers() { pay.For(newID()) }
