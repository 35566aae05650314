package demo

import "context"

// HandleByHand is the handler as many of us write it: look whether the order is there; if not, charge,
// write the rows in one transaction, acknowledge.
//
// It survives a lost ack and a crash after the commit. It does not survive a crash between the charge and
// the commit, nor two workers that look at the same moment.
func HandleByHand(ctx context.Context, shop *Shop, o Order) error {
	known, err := shop.known(ctx, o)
	if err != nil || known {
		return err
	}

	receipt, err := shop.charge(ctx, "", o)
	if err != nil {
		return err
	}

	tx, err := shop.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := shop.book(ctx, tx, o, receipt); err != nil {
		return err
	}
	return tx.Commit()
}
