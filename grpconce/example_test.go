package grpconce_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/grpconce"
	"github.com/effectively-once/once/store/memstore"
)

// A guarded handler runs once for each key of a caller.
func ExampleServer() {
	guard := grpconce.Server(memstore.New(nil), tenant, nil)
	handler := func(_ context.Context, req any) (any, error) {
		fmt.Println("charging", req.(*wrapperspb.StringValue).Value)
		return wrapperspb.String("receipt 1"), nil
	}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(grpconce.KeyMetadata, "order-17")) // as a client sends it
	for range 2 {
		receipt, err := guard(ctx, wrapperspb.String("49.99"), &grpc.UnaryServerInfo{FullMethod: "/shop.Payments/Pay"}, handler)
		fmt.Println(receipt.(*wrapperspb.StringValue).Value, err)
	}
	// Output:
	// charging 49.99
	// receipt 1 <nil>
	// receipt 1 <nil>
}

// payments is a service whose rows, and whose responses, are in one database.
type payments struct{}

// Pay returns the errors of its statements unchanged, so that a conflict is
// recognised and retried.
func (payments) Pay(ctx context.Context, amount *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
	tx, ok := grpconce.TxFrom[*sql.Tx](ctx)
	if !ok {
		return nil, status.Error(codes.InvalidArgument, "payments need a key")
	}
	if amount.Value <= 0 {
		return nil, status.Error(codes.InvalidArgument, "the amount is not positive") // recorded, the rows are rolled back
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO payments (amount) VALUES (?)", amount.Value); err != nil {
		return nil, fmt.Errorf("record the payment: %w", err)
	}
	return wrapperspb.String("receipt 1"), nil
}

// The key, the rows of the handler and its response are one commit.
func ExampleServerTx() {
	serve := func(store once.TxStore[*sql.Tx]) *grpc.Server {
		required := func(method string) bool { return method == "/shop.Payments/Pay" }
		return grpc.NewServer(
			grpc.UnaryInterceptor(grpconce.ServerTx(store, tenant, &grpconce.Options{Required: required})),
			grpc.WaitForHandlers(true))
	}
	_, _ = serve, payments.Pay
}

// A client that has a name for the call uses it as the key. Then even a new
// process repeats the same call.
func ExampleClient() {
	conn, err := grpc.NewClient("dns:///payments.example:443",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpconce.Client(nil)))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	pay := func(ctx context.Context, order string) error {
		var receipt wrapperspb.StringValue
		err := conn.Invoke(grpconce.WithKey(ctx, order), "/shop.Payments/Pay", wrapperspb.Int64(4999), &receipt)
		if grpconce.ReasonOf(err) == grpconce.ReasonOutcomeUnknown {
			return fmt.Errorf("do not charge %s under another key: %w", order, err)
		}
		return err
	}
	_ = pay
}
