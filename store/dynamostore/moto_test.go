package dynamostore_test

import (
	"io"
	"net/http"
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
	testenv.CheckDynamoDB(t, func(path string) (string, error) {
		response, err := http.Get(url + path)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return string(text), err
	})
	h := harness(t, url, dynamostore.Options{})
	h.Patience = time.Minute // it does one thing at a time
	h.NoOutbox = true
	storetest.RunTx(t, h)
}
