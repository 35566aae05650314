package doctor

import (
	"context"
	"testing"

	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/secret/secrettest"
)

// What is wrong in one part of a broker's URL never shows the secret in another.
func TestBrokenBrokerURLShowsNoSecret(t *testing.T) {
	ends, cancel := context.WithCancel(t.Context())
	cancel() // nothing is waited for
	for _, from := range []string{
		"nats://u:" + secrettest.Secret + "@127.0.0.1:1?creds=/nowhere",
		"kafka://u:" + secrettest.Secret + "@127.0.0.1:1,127.0.0.1:2?sasl=plain",
		"kafka://u@127.0.0.1:1?sasl=plain&password=" + secrettest.Secret,
		"amqp://u:" + secrettest.Secret + "@127.0.0.1:1/vhost",
		"servicebus://u:" + secrettest.Secret + "@127.0.0.1:1?endpoint=http://127.0.0.1:1",
		"eventhubs://u:" + secrettest.Secret + "@127.0.0.1:1/orders?emulator=true",
		"http://u:" + secrettest.Secret + "@127.0.0.1:1/vhost",
	} {
		secrettest.Broken(t, from, func(broken string) string {
			ctx, _ := secret.With(ends)
			b, err := Dial(ctx, broken)
			if err != nil {
				return secrettest.Said(t.Context(), err)
			}
			defer b.Close()
			return b.String()
		})
	}
}
