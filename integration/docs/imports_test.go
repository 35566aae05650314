package docs

// What the code of the documentation may import. It is compiled against these packages.
import (
	_ "bytes"
	_ "context"
	_ "database/sql"
	_ "encoding/json"
	_ "errors"
	_ "fmt"
	_ "log/slog"
	_ "net/http"
	_ "os"
	_ "slices"
	_ "testing"
	_ "time"

	_ "github.com/effectively-once/once"
	_ "github.com/effectively-once/once/broker"
	_ "github.com/effectively-once/once/broker/brokertest"
	_ "github.com/effectively-once/once/broker/kafkabroker"
	_ "github.com/effectively-once/once/broker/natsbroker"
	_ "github.com/effectively-once/once/broker/rabbitbroker"
	_ "github.com/effectively-once/once/httponce"
	_ "github.com/effectively-once/once/inbox"
	_ "github.com/effectively-once/once/janitor"
	_ "github.com/effectively-once/once/outbox"
	_ "github.com/effectively-once/once/reconcile"
	_ "github.com/effectively-once/once/store"
	_ "github.com/effectively-once/once/store/pgstore"
	_ "github.com/effectively-once/once/store/sqlstore"
	_ "github.com/effectively-once/once/store/storetest"

	_ "github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/labstack/echo/v4"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/twmb/franz-go/pkg/kgo"
)
