// Package serve runs what an outbox and its store need beside the application, for services that are not written in Go,
// or do not want it in their own processes: the relay, the janitor, the questions about abandoned work, health and metrics.
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
	spareStop     = 5 * time.Second // more than that: what does not heed its context is left behind
)

// server is a process at work.
type server struct {
	target    *target.Target
	logger    *slog.Logger
	relay     *outbox.Relay         // nil: nothing is published
	parking   *reconcile.Reconciler // nil: nothing is parked, or asked about
	asker     *asking.Asker
	janitor   *janitor.Janitor // nil: nothing is forgotten
	lookouts  lookout
	stopping  atomic.Bool
	late      bool // something did not end in time
	stop      time.Duration
	published outbox.Stats
	parked    reconcile.Stats
	forgotten janitor.Stats
}

// Run does what the configuration says until ctx ends, and returns nil when all that had begun is ended. Any number of
// processes may do so on one database.
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
		if !s.late { // else it would wait for connections that nobody gives back
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
	if err := s.lookouts.misfit(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", cmp.Or(c.Listen, defaultListen))
	if err != nil {
		return fmt.Errorf("the health endpoints and metrics cannot be served: %w", err)
	}
	defer listener.Close()
	logger.InfoContext(ctx, "serving", "database", s.target.String(), "address", listener.Addr().String(),
		"publishes", s.relay != nil, "parks", len(c.Reconcile.Park), "operations", len(c.Reconcile.Operations), "forgets", s.janitor != nil)
	err = s.all(ctx, listener)
	logger.InfoContext(ctx, "stopped", "error", err)
	return err
}

// plan makes what is to run.
func (s *server) plan(c Config, secrets *secret.Set) error {
	s.lookouts = lookout{target: s.target}
	publisher, err := c.publisher(secrets)
	if err != nil {
		return err
	}
	if publisher == nil && c.Relay != (Relay{}) {
		return refuse("there are settings of relay, and nothing to publish to: give webhook, nats or rabbitmq")
	}
	if publisher != nil {
		if s.relay, err = c.relay(); err != nil {
			return errors.Join(err, publisher.Close())
		}
		s.relay.Store, s.relay.Publisher, s.relay.Logger = s.target.Store, publisher, s.logger
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
		return refuse("there is nothing to do: say where to publish to in webhook, nats or rabbitmq, what to park in " +
			"reconcile.park or to ask about in [[reconcile.operation]], or have a janitor")
	}
	return nil
}

// check has each task say what is wrong with its settings. A run whose context has ended does nothing else.
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

// nowhere has no lanes for a relay.
type nowhere struct {
	store.Relayable
	options *once.Options
}

func (n nowhere) Options() *once.Options { return n.options }

func (nowhere) LeaseLanes(ctx context.Context, _ [16]byte, _ time.Duration, _ []int) (store.Leases, error) {
	return store.Leases{}, ctx.Err()
}

func (nowhere) ReleaseLanes(context.Context, [16]byte, []int) error { return nil }

// all runs everything until ctx ends, or something cannot run.
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
	ended := make(chan error, len(tasks))
	for _, run := range tasks {
		go func() { ended <- run(ctx) }()
	}

	var errs []error
	running := len(tasks)
	select {
	case <-ctx.Done():
	case err := <-served:
		errs = append(errs, fmt.Errorf("the health endpoints and metrics cannot be served any more: %w", err))
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
			return errors.Join(append(errs, errors.New("what has begun did not end in time"))...)
		}
	}
	return errors.Join(errs...)
}
