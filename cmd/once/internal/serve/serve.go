// Package serve runs the background work of a store and its outbox for services
// that are not written in Go or do not run it themselves: the relay, the
// janitor, the reconciler, health checks and metrics.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/effectively-once/once"
	"github.com/effectively-once/once/cmd/once/internal/asking"
	"github.com/effectively-once/once/cmd/once/internal/consoleserver"
	"github.com/effectively-once/once/cmd/once/internal/secret"
	"github.com/effectively-once/once/cmd/once/internal/target"
	"github.com/effectively-once/once/janitor"
	"github.com/effectively-once/once/outbox"
	"github.com/effectively-once/once/reconcile"
	"github.com/effectively-once/once/store"
)

const (
	defaultListen = "127.0.0.1:9464"
	defaultStop   = 20 * time.Second
	spareStop     = 5 * time.Second // after that, tasks that ignore their context are abandoned
)

// server is a running process.
type server struct {
	target    *target.Target
	logger    *slog.Logger
	relay     *outbox.Relay         // nil: nothing is published
	parking   *reconcile.Reconciler // nil: nothing is parked or asked about
	asker     *asking.Asker
	janitor   *janitor.Janitor      // nil: nothing is forgotten
	console   *consoleserver.Server // nil: none is served
	lookouts  lookout
	stopping  atomic.Bool
	late      bool // a task did not end in time
	stop      time.Duration
	published outbox.Stats
	parked    reconcile.Stats
	forgotten janitor.Stats
}

// Run runs the configured tasks until ctx ends, and returns nil when all of
// them have ended. Any number of processes may run on one database.
func Run(ctx context.Context, c Config, logger *slog.Logger) error {
	s := &server{logger: logger, stop: cmp.Or(time.Duration(c.Stop), defaultStop)}
	if c.Stop < 0 {
		return refuse("stop is %v: it must not be negative", s.stop)
	}
	var err error
	sealing, err := c.Sealing.sealing()
	if err != nil {
		return err
	}
	s.target, err = target.Open(ctx, c.URL, &target.Options{Options: once.Options{Logger: logger, Sealing: sealing}})
	if err != nil {
		return err
	}
	defer func() {
		if !s.late { // closing would wait for connections that are never returned
			s.target.Close()
		}
	}()
	if err := s.plan(c, secret.From(ctx)); err != nil {
		return err
	}
	defer s.asker.Close()
	if s.relay != nil {
		defer s.relay.Publisher.Close()
	}
	if err := s.check(); err != nil {
		return err
	}
	lag, endLag := c.lag(ctx)
	defer endLag()
	var published func() int64
	if s.relay != nil {
		published = s.published.Published.Load
	}
	if s.console, err = c.console(ctx, s.target, s.asker, lag, published, logger); err != nil {
		return err
	}
	if s.console != nil {
		defer s.console.Close()
	}
	if err := s.lookouts.misfit(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(c.Listen, defaultListen))
	if err != nil {
		return fmt.Errorf("the health endpoints and metrics cannot be served: %w", err)
	}
	defer listener.Close()
	logger.InfoContext(ctx, "serving", "database", s.target.String(), "address", listener.Addr().String(),
		"console", s.console.Address(), "publishes", s.relay != nil, "parks", len(c.Reconcile.Park), "operations", len(c.Reconcile.Operations), "forgets", s.janitor != nil)
	err = s.all(ctx, listener)
	logger.InfoContext(ctx, "stopped", "error", err)
	return err
}

// plan creates the tasks.
func (s *server) plan(c Config, secrets *secret.Set) error {
	s.lookouts = lookout{target: s.target}
	publisher, err := c.publisher(secrets)
	if err != nil {
		return err
	}
	if publisher == nil && c.Relay != (Relay{}) {
		return refuse("relay is configured, but there is nothing to publish to: add webhook, eventgrid, nats, rabbitmq, redis, sqs, pubsub, eventhubs or servicebus")
	}
	if publisher != nil {
		messages, err := target.Need[store.Relayable](s.target, target.AnOutbox)
		if err != nil {
			return errors.Join(refuse("there is something to publish to, but no outbox: %v", err), publisher.Close())
		}
		if s.relay, err = c.relay(); err != nil {
			return errors.Join(err, publisher.Close())
		}
		s.relay.Store, s.relay.Publisher, s.relay.Logger = messages, publisher, s.logger
		s.relay.StopTime, s.relay.Stats = s.stop, &s.published
	}
	if s.parking, s.asker, err = c.Reconcile.reconciler(s.target.Store); err != nil {
		return err
	}
	if s.parking != nil {
		s.parking.Logger, s.parking.Stats = s.logger, &s.parked
	}
	if c.Janitor != nil {
		s.janitor = c.janitor()
		s.janitor.Store, s.janitor.Logger, s.janitor.Stats = s.target.Store, s.logger, &s.forgotten
	}
	if s.relay == nil && s.parking == nil && s.janitor == nil {
		return refuse("there is nothing to do: configure webhook, eventgrid, nats, rabbitmq, redis, sqs, pubsub, eventhubs or servicebus to publish, reconcile.park or " +
			"[[reconcile.operation]] to resolve unknown keys, or [janitor]")
	}
	return nil
}

// check validates the settings of each task. A Run whose context has ended does
// nothing else.
func (s *server) check() (wrong error) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if s.relay != nil {
		relay := *s.relay
		relay.Store = nowhere{options: s.target.Store.Options()}
		wrong = said("relay", relay.Run(ended))
	}
	if s.parking != nil {
		wrong = errors.Join(wrong, said("reconcile", s.parking.Run(ended)))
	}
	if s.janitor != nil {
		wrong = errors.Join(wrong, said("janitor", s.janitor.Run(ended)))
	}
	return wrong
}

func said(section string, err error) error {
	if err == nil {
		return nil
	}
	return refuse("%s", inFile(section, err))
}

// nowhere is a store without lanes for a relay.
type nowhere struct {
	store.Relayable
	options *once.Options
}

func (n nowhere) Options() *once.Options { return n.options }

func (nowhere) LeaseLanes(ctx context.Context, _ [16]byte, _ time.Duration, _ []int) (store.Leases, error) {
	return store.Leases{}, ctx.Err()
}

func (nowhere) ReleaseLanes(context.Context, [16]byte, []int) error { return nil }

// all runs the tasks until ctx ends or one of them fails.
func (s *server) all(ctx context.Context, l net.Listener) error {
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10}
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	defer web.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var tasks []func(context.Context) error
	if s.relay != nil {
		tasks = append(tasks, s.relay.Run)
	}
	if s.parking != nil {
		tasks = append(tasks, s.parking.Run)
	}
	if s.janitor != nil {
		tasks = append(tasks, s.janitor.Run)
	}
	if s.console != nil {
		tasks = append(tasks, s.console.Run)
	}
	ended := make(chan error, len(tasks))
	for _, run := range tasks {
		go func() { ended <- run(ctx) }()
	}

	var errs []error
	running := len(tasks)
	select {
	case <-ctx.Done():
	case err := <-served:
		errs = append(errs, fmt.Errorf("the health endpoints and metrics are no longer served: %w", err))
	case err := <-ended:
		running--
		errs = append(errs, err)
	}
	s.stopping.Store(true)
	cancel()
	late := time.After(s.stop + spareStop)
	for ; running > 0; running-- {
		select {
		case err := <-ended:
			errs = append(errs, err)
		case <-late:
			s.late = true
			return errors.Join(append(errs, errors.New("some tasks did not stop in time"))...)
		}
	}
	return errors.Join(errs...)
}
