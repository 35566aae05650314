package dynamostore_test

import (
	"testing"
	"time"

	"github.com/effectively-once/once/internal/testenv"
	"github.com/effectively-once/once/store/dynamostore"
	"github.com/effectively-once/once/store/storetest"
)

// Others have written moto, so it shows whether DynamoDB means by the requests
// what the fake takes them to mean.
func TestConformanceOnMoto(t *testing.T) {
	url := testenv.DynamoDB(t)
	h := harness(t, url, dynamostore.Options{})
	h.Patience = time.Minute // it does one thing at a time
	h.NoOutbox = true
	storetest.RunTx(t, h)
}
