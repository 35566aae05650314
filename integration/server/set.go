//go:build linux

package server

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/effectively-once/once/internal/testenv"
)

// Set is a set of servers that were started together. Servers that were not
// requested are nil.
type Set struct {
	galera, rabbits, browser, spin bool // the tests start their own

	Postgres, MariaDB, PgBouncer, RabbitMQ, Redis, Azurite, DynamoDB, Kafka, SQS *Instance
}

// Start starts servers of these kinds concurrently. A PgBouncer includes its
// PostgreSQL. If one fails, none runs.
func Start(ctx context.Context, kinds ...Kind) (*Set, error) {
	s := Set{galera: slices.Contains(kinds, Galera), rabbits: slices.Contains(kinds, RabbitMQs), browser: slices.Contains(kinds, Chromium),
		spin: slices.Contains(kinds, Spin)}
	var starting sync.WaitGroup
	var errs [8]error
	starting.Go(func() { errs[0] = s.startPostgres(ctx, kinds) })
	starting.Go(func() { errs[1] = s.startMariaDB(ctx, kinds) })
	starting.Go(func() { errs[2] = s.startRabbitMQ(ctx, kinds) })
	starting.Go(func() { errs[3] = s.startRedis(ctx, kinds) })
	starting.Go(func() { errs[4] = s.startAzurite(ctx, kinds) })
	starting.Go(func() { errs[5] = s.startDynamoDB(ctx, kinds) })
	starting.Go(func() { errs[6] = s.startKafka(ctx, kinds) })
	starting.Go(func() { errs[7] = s.startSQS(ctx, kinds) })
	starting.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return &s, nil
}

func (s *Set) startPostgres(ctx context.Context, kinds []Kind) (err error) {
	pooled := slices.Contains(kinds, PgBouncer)
	if !pooled && !slices.Contains(kinds, Postgres) {
		return nil
	}
	if s.Postgres, err = StartPostgres(ctx); err == nil && pooled {
		s.PgBouncer, err = StartPgBouncer(ctx, s.Postgres)
	}
	return err
}

func (s *Set) startMariaDB(ctx context.Context, kinds []Kind) (err error) {
	if slices.Contains(kinds, MariaDB) {
		s.MariaDB, err = StartMariaDB(ctx)
	}
	return err
}

func (s *Set) startRabbitMQ(ctx context.Context, kinds []Kind) (err error) {
	if slices.Contains(kinds, RabbitMQ) {
		s.RabbitMQ, err = StartRabbitMQ(ctx)
	}
	return err
}

func (s *Set) startRedis(ctx context.Context, kinds []Kind) (err error) {
	if slices.Contains(kinds, Redis) {
		s.Redis, err = StartRedis(ctx)
	}
	return err
}

func (s *Set) startAzurite(ctx context.Context, kinds []Kind) (err error) {
	if slices.Contains(kinds, Azurite) {
		s.Azurite, err = StartAzurite(ctx)
	}
	return err
}

func (s *Set) startDynamoDB(ctx context.Context, kinds []Kind) (err error) {
	if slices.Contains(kinds, DynamoDB) {
		s.DynamoDB, err = StartDynamoDB(ctx)
	}
	return err
}

func (s *Set) startKafka(ctx context.Context, kinds []Kind) (err error) {
	if slices.Contains(kinds, Kafka) {
		s.Kafka, err = StartKafka(ctx)
	}
	return err
}

func (s *Set) startSQS(ctx context.Context, kinds []Kind) (err error) {
	if slices.Contains(kinds, SQS) {
		s.SQS, err = StartSQS(ctx)
	}
	return err
}

// byDefault returns one instance of each kind that a complete run needs, nil if
// it was not requested.
func (s *Set) byDefault() []*Instance {
	return []*Instance{s.PgBouncer, s.Postgres, s.MariaDB, s.RabbitMQ, s.Redis}
}

// Env returns the variables that [testenv] reads: the addresses and, if all
// kinds of servers of a complete run do, the one that requires them.
func (s *Set) Env() []string {
	var env []string
	add := func(name, value string) { env = append(env, name+"="+value) }
	if s.Postgres != nil {
		add(testenv.PostgresVar, s.Postgres.DSN())
		add(testenv.PostgresDataVar, s.Postgres.Identity())
	}
	if s.PgBouncer != nil {
		add(testenv.PgBouncerVar, s.PgBouncer.DSN())
	}
	if s.MariaDB != nil {
		add(testenv.MariaDBVar, s.MariaDB.DSN())
		add(testenv.MariaDBDataVar, s.MariaDB.Identity())
	}
	if s.RabbitMQ != nil {
		add(testenv.RabbitMQVar, s.RabbitMQ.DSN())
		add(testenv.RabbitMQClusterVar, s.RabbitMQ.Identity())
	}
	if s.Redis != nil {
		add(testenv.RedisVar, s.Redis.DSN())
		add(testenv.RedisDataVar, s.Redis.Identity())
	}
	if s.Azurite != nil {
		add(testenv.AzuriteVar, s.Azurite.DSN())
		add(testenv.AzuriteAccountVar, s.Azurite.Identity())
	}
	if s.DynamoDB != nil {
		add(testenv.DynamoDBVar, s.DynamoDB.DSN())
		add(testenv.DynamoDBHomeVar, s.DynamoDB.Identity())
	}
	if s.Kafka != nil {
		add(testenv.KafkaVar, s.Kafka.DSN())
		add(testenv.KafkaClusterVar, s.Kafka.Identity())
	}
	if s.SQS != nil {
		add(testenv.SQSVar, s.SQS.DSN())
		add(testenv.SQSHomeVar, s.SQS.Identity())
	}
	if s.galera {
		add(testenv.GaleraVar, "1")
	}
	if s.rabbits {
		add(testenv.RabbitMQsVar, "1")
	}
	if s.browser {
		add(testenv.BrowserVar, "1")
	}
	if s.spin {
		add(testenv.SpinVar, "1")
	}
	if !slices.Contains(s.byDefault(), nil) {
		add(testenv.RequireVar, "1")
	}
	return env
}

// Stop stops the servers concurrently.
func (s *Set) Stop() error {
	var stopping sync.WaitGroup
	instances := append(s.byDefault(), s.Azurite, s.DynamoDB, s.Kafka, s.SQS)
	errs := make([]error, len(instances))
	for n, i := range instances {
		if i != nil {
			stopping.Go(func() { errs[n] = i.Stop() })
		}
	}
	stopping.Wait()
	return errors.Join(errs...)
}
