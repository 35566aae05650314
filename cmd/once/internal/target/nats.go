package target

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/effectively-once/once/store/natsstore"
)

// Bucket is that of a store in NATS.
type Bucket struct {
	JetStream jetstream.JetStream
	Name      string
	Stream    string
}

// openNATS opens a bucket. Unlike the others it connects at once, because a client
// of NATS has a connection, and not an address.
func openNATS(u *url.URL, o *Options) (*Target, error) {
	name := strings.Trim(u.Path, "/")
	if u.Host == "" || name == "" || strings.Contains(name, "/") {
		return nil, refuse("it has no server, or no bucket: write nats://user:password@host:4222/bucket")
	}
	q := u.Query()
	with := []nats.Option{nats.Name("once"), nats.Timeout(connectTime), nats.MaxReconnects(-1)}
	if file := q.Get("creds"); file != "" {
		with = append(with, nats.UserCredentials(file))
	}
	hosts := []string{u.Scheme + "://" + u.Host}
	for _, addr := range q["addr"] {
		hosts = append(hosts, u.Scheme+"://"+addr)
	}
	for parameter := range q {
		if parameter != "creds" && parameter != "addr" {
			return nil, refuse("the parameter %s is not for nats", parameter)
		}
	}
	switch password, ok := u.User.Password(); {
	case ok && u.User.Username() == "":
		with = append(with, nats.Token(password))
	case ok:
		with = append(with, nats.UserInfo(u.User.Username(), password))
	case u.User != nil:
		return nil, refuse("it has a user and no password: write nats://user:password@host, or a token as nats://:token@host")
	}
	connection, err := nats.Connect(strings.Join(hosts, ","), with...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", u.Host, err)
	}
	js, err := jetstream.New(connection)
	if err != nil {
		connection.Close()
		return nil, err
	}
	b := &Bucket{JetStream: js, Name: name, Stream: "KV_" + name}
	return &Target{Store: natsstore.New(js, &natsstore.Options{Options: o.Options, Bucket: name}), Engine: NATS, Bucket: b,
		now: b.now, byHand: b.byHand, close: func() error { connection.Close(); return nil }}, nil
}

// now returns the time of the leader of the stream.
func (b *Bucket) now(ctx context.Context) (time.Time, error) {
	stream, err := b.JetStream.Stream(ctx, b.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return time.Time{}, fmt.Errorf("there is no bucket %s: %w", b.Name, err)
	}
	if err != nil {
		return time.Time{}, err
	}
	return stream.CachedInfo().TimeStamp, nil
}

// byHand publishes to a subject that is new, and then after that message.
func (b *Bucket) byHand(ctx context.Context, key string, keep time.Duration) error {
	m := nats.NewMsg("$KV." + b.Name + ".bench." + key)
	m.Data = []byte("as long as a record with its outcome, or nearly")
	m.Header.Set(jetstream.MsgTTLHeader, keep.String())
	made, err := b.JetStream.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(0))
	if err != nil {
		return err
	}
	_, err = b.JetStream.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(made.Sequence))
	return err
}
