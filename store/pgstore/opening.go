package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// opening is the beginning of a transaction whose BEGIN and claim travel with the first statement of its user.
type opening struct {
	ctx   context.Context // for what has none of its own
	conn  *pgx.Conn
	begin string
	lock  *pgx.QueuedQuery // where the claim needs a snapshot that is newer than its lock
	claim string
	args  []any

	sent  bool  // BEGIN and the claim are on their way, or have arrived
	won   bool  // the server has answered that the claim is ours
	busy  bool  // or that a transaction in flight has the key
	err   error // why not, for every statement behind it
	cause error // the same, in the words of the server
	odd   bool  // something was sent that may have done more than to read or write rows
}

// errTaken is what the statements of a handler get when another has its key. It is unexported: what the handler
// returns is ignored.
var errTaken = errors.New("once: another call has this key, so this statement was not run; the first answer is returned, " +
	"whatever this handler returns")

// queue puts BEGIN and the claim into an empty batch. A claim that cannot be made is an error, so that the server skips
// what is behind it.
func (o *opening) queue(b *pgx.Batch) {
	b.Queue(o.begin)
	if o.lock != nil {
		b.Queue(o.lock.SQL, o.lock.Arguments...)
	}
	b.Queue(o.claim, o.args...)
}

// first sends BEGIN and the claim, and sql behind them. When it returns without an error, the results are those of sql.
func (o *opening) first(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	b := new(pgx.Batch)
	o.queue(b)
	if sql != "" {
		b.Queue(sql, args...)
	}
	o.sent = true
	replies := o.conn.SendBatch(ctx, b)
	if err := o.read(replies); err != nil {
		_ = replies.Close() // says the same
		return nil, err
	}
	return replies, nil
}

// read takes the replies to what queue has sent.
func (o *opening) read(replies pgx.BatchResults) error {
	_, err := replies.Exec()
	if err == nil && o.lock != nil {
		_, err = replies.Exec()
	}
	if err == nil {
		_, err = replies.Exec()
	}
	o.won, o.err, o.cause = err == nil, err, err
	if pe, refused := serverError(err); refused {
		o.busy, o.err = saysWhy(pe, keyInFlight), errTaken
	}
	return o.err
}

// open sends BEGIN and the claim by themselves, unless they were sent.
func (o *opening) open(ctx context.Context) error {
	if !o.sent {
		replies, err := o.first(ctx, "", nil)
		if err != nil {
			return err
		}
		if err := replies.Close(); err != nil {
			o.won, o.err, o.cause = false, err, err
		}
	}
	return o.err
}

// openOddly is open before something that may do anything.
func (o *opening) openOddly(ctx context.Context) error {
	o.odd = true
	return o.open(ctx)
}

// before is called for a statement that is sent by itself.
func (o *opening) before(ctx context.Context, sql string) error {
	if kindOf(sql) != plain {
		o.odd = true
	}
	return o.open(ctx)
}

// exposed opens for the raw connection, which nothing guards: if there is no transaction, it is closed.
func (o *opening) exposed() {
	if o.openOddly(o.ctx) != nil && o.conn.PgConn().TxStatus() == 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), endTime)
		defer cancel()
		_ = o.conn.Close(ctx)
	}
}

func (o *opening) exec(ctx context.Context, sql string, args []any) (tag pgconn.CommandTag, err error) {
	replies, err := o.first(ctx, sql, args)
	if err != nil {
		return tag, err
	}
	tag, err = replies.Exec()
	if ended := replies.Close(); err == nil {
		err = ended
	}
	return tag, err
}

func (o *opening) query(ctx context.Context, sql string, args []any) (pgx.Rows, error) {
	replies, err := o.first(ctx, sql, args)
	if err != nil {
		return failed{err: err}, err
	}
	rows, err := replies.Query()
	if err != nil {
		_ = replies.Close() // says the same
		return rows, err
	}
	return &batchRows{Rows: rows, batch: replies}, nil
}
