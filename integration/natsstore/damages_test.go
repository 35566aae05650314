package natsstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/store/storetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// damages are those of the default bucket.
func damages(js jetstream.JetStream) (all []storetest.Damage) {
	for name, change := range map[string]func(header string) string{
		"no JSON":              func(h string) string { return h[:len(h)-1] },
		"no header":            func(string) string { return "" },
		"no attempt":           func(h string) string { return strings.Replace(h, `"attempt"`, `"attempts"`, 1) },
		"no status":            func(h string) string { return strings.Replace(h, `"status":"`, `"status":"x`, 1) },
		"no time":              func(h string) string { return strings.Replace(h, `"updated":`, `"updated":"now","other":`, 1) },
		"another's parts":      func(h string) string { return strings.Replace(h, `"scope":"tenant"`, `"scope":"other"`, 1) },
		"a format that is new": func(h string) string { return strings.Replace(h, `"format":2`, `"format":3`, 1) },
	} {
		all = append(all, storetest.Damage{Name: name, Record: func(ctx context.Context, k once.Key) error {
			id := k.UUID()
			stream, err := js.Stream(ctx, "KV_once")
			if err != nil {
				return err
			}
			is, err := stream.GetLastMsgForSubject(ctx, fmt.Sprintf("$KV.once.*.%x.%x", id[0]>>4, id))
			if err != nil {
				return err
			}
			m := nats.NewMsg(is.Subject)
			m.Header.Set("Once-Record", change(is.Header.Get("Once-Record")))
			m.Data = is.Data
			_, err = js.PublishMsg(ctx, m)
			return err
		}})
	}
	return all
}
