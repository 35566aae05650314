// Command grpc is a payment service over gRPC that takes each payment once, and a client whose first reply is lost.
//
//	go run ./examples/grpc
//
// Key, row and response are one commit of SQLite. The service is written by hand; one that protoc generates is guarded
// in the same way, by the interceptor alone.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	_ "modernc.org/sqlite"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/sqlstore"
)

func main() {
	if err := tell(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// tell starts a server on a free port, and sends it payments.
func tell(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "once-grpc")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := openBank(ctx, filepath.Join(dir, "bank.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	store := sqlstore.New(db, sqlstore.SQLite, nil)
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := serve(listener, store)
	defer server.Stop()
	return send(ctx, out, listener.Addr().String(), db)
}

func openBank(ctx context.Context, file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE payment (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")
	return db, err
}

// serve guards every method: a repeat is answered before its handler is reached.
func serve(listener net.Listener, store once.TxStore[*sql.Tx]) *grpc.Server {
	required := func(string) bool { return true }
	guard := grpconce.ServerTx(store, customer, &grpconce.Options{Required: required})
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(loseOneReply(), guard), grpc.WaitForHandlers(true))
	server.RegisterService(&bankService, bank{})
	go func() { _ = server.Serve(listener) }() // it ends with Stop
	return server
}

// customer is the Caller. A real one reads who was authenticated.
func customer(ctx context.Context, _ *grpc.UnaryServerInfo) (string, error) {
	if names := metadata.ValueFromIncomingContext(ctx, "customer"); len(names) == 1 {
		return names[0], nil
	}
	return "", errors.New("who is that")
}

// loseOneReply lets the first call do its work, and loses what it has answered.
func loseOneReply() grpc.UnaryServerInterceptor {
	lost := make(chan struct{}, 1)
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		answer, err := next(ctx, req)
		select {
		case lost <- struct{}{}:
			return nil, status.Error(codes.Unavailable, "the reply was lost on the way")
		default:
			return answer, err
		}
	}
}

type bank struct{}

// pay writes through the transaction of its call, and returns the errors of its statements as they are.
func (bank) pay(ctx context.Context, cents *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
	tx, _ := grpconce.TxFrom[*sql.Tx](ctx)
	if cents.Value <= 0 {
		return nil, status.Error(codes.InvalidArgument, "the amount is not positive")
	}
	done, err := tx.ExecContext(ctx, "INSERT INTO payment (cents) VALUES (?)", cents.Value)
	if err != nil {
		return nil, err
	}
	id, err := done.LastInsertId()
	return wrapperspb.String(fmt.Sprintf("receipt %d over %d cents", id, cents.Value)), err
}

const payMethod = "/shop.Bank/Pay"

var bankService = grpc.ServiceDesc{
	ServiceName: "shop.Bank",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Pay", Handler: func(srv any, ctx context.Context, decode func(any) error, guard grpc.UnaryServerInterceptor) (any, error) {
		cents := new(wrapperspb.Int64Value)
		if err := decode(cents); err != nil {
			return nil, err
		}
		return guard(ctx, cents, &grpc.UnaryServerInfo{Server: srv, FullMethod: payMethod}, func(ctx context.Context, req any) (any, error) {
			return srv.(bank).pay(ctx, req.(*wrapperspb.Int64Value))
		})
	}}},
}

// send is the client: the interceptor repeats a call that got no answer, under the same key.
func send(ctx context.Context, out io.Writer, address string, db *sql.DB) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(grpconce.Client(nil)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "customer", "alice")
	for _, payment := range []struct {
		key   string
		cents int64
	}{{"order-1", 4999}, {"order-1", 4999}, {"order-1", 1}, {"order-2", -5}, {"order-2", -5}} {
		var header metadata.MD
		var receipt wrapperspb.StringValue
		err := conn.Invoke(grpconce.WithKey(ctx, payment.key), payMethod, wrapperspb.Int64(payment.cents), &receipt, grpc.Header(&header))
		answer := receipt.Value
		if err != nil {
			answer = status.Code(err).String()
			if reason := grpconce.ReasonOf(err); reason != "" {
				answer += ", " + string(reason)
			}
		}
		if grpconce.Replayed(header) {
			answer += " (replayed)"
		}
		fmt.Fprintf(out, "%s, %d cents: %s\n", payment.key, payment.cents, answer)
	}
	var rows, cents int
	err = db.QueryRowContext(ctx, "SELECT count(*), sum(cents) FROM payment").Scan(&rows, &cents)
	fmt.Fprintf(out, "the bank has %d payment, of %d cents\n", rows, cents)
	return err
}
