# Everything is a plain go command; the targets only spare you the typing.
GO      ?= go
SOAK    ?= 1m
KEYS    ?= 10000000
VERSIONS ?= 16 17 18
FLAKY   ?= 2
MODULES := $(shell $(GO) list -m -f '{{.Dir}}' 2>/dev/null) $(CURDIR)/bench/peers $(CURDIR)/observe/alerts
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

# SQLite is translated from C, and five times as slow with the race detector, as the suite says.
RACE := -race -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc=-race=false

# The suite repeats a test that failed, alone and up to FLAKY times, and lists it as flaky if it passes. FLAKY=0 is strict.
SUITE = $(GO) run ./integration/cmd/suite -flaky $(FLAKY)

# Tests without the race detector are compiled as lint compiles them.
PLAIN = env CGO_ENABLED=0 GOFLAGS=-trimpath $(SUITE) -norace

.PHONY: demo bench-console screenshots test test-azurite test-browser test-dynamodb test-galera test-kafka test-postgres test-rabbitmq test-sqs test-models check load lint oldest vuln bench soak release release-check

# Of what follows, the tests that every change must pass.
test test-azurite test-browser test-dynamodb test-galera test-postgres: export TMPDIR := $(shell ./.ci/tmp)

demo:
	$(GO) run ./cmd/once demo

# The servers tool starts private servers, runs the command with their addresses in its environment, and stops them.
# The suite tests all modules, goes on after a failure, and sums up at the end.
test:
	$(GO) run ./integration/cmd/servers -- $(SUITE)

# The suites and proofs for PostgreSQL on the versions that Debian does not have, which npm installs into a cache. Without
# integration/failover: these packages lack pg_basebackup.
test-postgres:
	for version in $(VERSIONS); do ONCE_TEST_POSTGRES_VERSION=$$version $(GO) run ./integration/cmd/servers -only postgres -- \
		sh -c '$(PLAIN) -run "Conformance|Contract" ./store/pgstore ./integration/sqlstore && $(PLAIN) \
		-run "/(postgres|pgstore|sqlstore, p)" ./integration/crash ./integration/faults ./integration/lostreply ./integration/history' || exit; done

# MySQL's dialect in a cluster of three nodes, which takes half a minute to start, for each test.
test-galera:
	$(GO) run ./integration/cmd/servers -only galera -- $(GO) test -count=1 -v ./integration/galera

# The store in Azure Tables, on its emulator, which npm installs into a cache.
test-azurite:
	$(GO) run ./integration/cmd/servers -only azurite -- sh -c '$(PLAIN) -run Azurite ./integration/server && \
		$(SUITE) ./store/tablestore ./integration/tablestore && $(SUITE) -run /tablestore ./integration/history && \
		$(PLAIN) -run "Azurite|WithoutTables" ./cmd/once'

# The console in Chromium, on SQLite and PostgreSQL. npm installs axe-core into a cache.
test-browser:
	$(GO) run ./integration/cmd/servers -only postgres,chromium -- $(SUITE) ./integration/console

# The pictures in docs, taken by Chromium. Times, random ids and trends are replaced, so they change only with the pages.
screenshots:
	ONCE_TEST_PICTURES=$(CURDIR)/docs/images $(GO) run ./integration/cmd/servers -only chromium -- $(GO) test -count=1 -run TestPictures ./integration/console

# Kafka itself, which Maven fetches into a cache: one node with a group that is rebalanced every second, and three nodes of
# which one after the other is killed.
test-kafka:
	$(GO) run ./integration/cmd/servers -only kafka,postgres -- sh -c '$(GO) test -count=1 -run Kafka ./integration/server ./cmd/once/internal/doctor && \
		$(GO) test $(RACE) -count=1 -timeout 20m -run Kafka ./integration/brokers && \
		$(GO) test $(RACE) -count=1 -timeout 20m -run "Soak/.*/.*kafka|RestartsInTheMiddle/pgstore_kafka|TopicMadeAnew/pgstore|RebalancedEverySecond" ./integration/consume'

# RabbitMQ in a cluster of three nodes, of which one is separated from the others.
test-rabbitmq:
	$(GO) run ./integration/cmd/servers -only rabbitmqs,postgres -- sh -c '$(GO) test -count=1 -run RabbitMQsAreKeptApart ./integration/server && \
		$(GO) test $(RACE) -v -count=1 -timeout 0 -run PartitionedRabbitMQ ./integration/consume'

# DynamoDB's store on an imitation that others have written, from the Python Package Index.
test-dynamodb:
	$(GO) run ./integration/cmd/servers -only dynamodb -- $(PLAIN) -run OnMoto ./store/dynamostore ./integration/dynamostore

# The broker of SQS on an imitation that others have written, which Maven fetches.
test-sqs:
	$(GO) run ./integration/cmd/servers -only sqs -- $(GO) test -count=1 -run ElasticMQ ./broker/sqsbroker

# The models of the protocol, right and wrong, with Spin.
test-models:
	$(GO) run ./integration/cmd/servers -only spin -- $(PLAIN) ./integration/models

# What needs no server, for the inner loop.
check:
	$(SUITE) -check

# Everything, three times running, on a machine that much else keeps busy.
load:
	for time in 1 2 3; do $(GO) run ./integration/cmd/servers -- $(SUITE) -load 8 || exit; done

lint:
	./.ci/lint $(STATICCHECK) $(MODULES)

# The root module, on the oldest Go release that it supports. What passed is not run again after a failure.
oldest:
	for time in 0 $$(seq $(FLAKY)); do GOWORK=off GOTOOLCHAIN=go1.24.11 $(GO) test ./... && exit; done; exit 1

vuln:
	./.ci/vuln $(GOVULNCHECK) $(MODULES)

# The pages of the console on KEYS keys in PostgreSQL, and a tenth as many messages. Ten million keys take 5 GB.
bench-console:
	$(GO) run ./integration/cmd/servers -only postgres -- $(GO) run ./integration/cmd/consoleload -keys $(KEYS)

bench:
	$(GO) run ./integration/cmd/servers -- $(GO) run ./bench

# Proofs and simulated worlds, each for as long as SOAK says, the seeded bugs, and servers that an ordinary run leaves out.
soak:
	ONCE_SOAK=$(SOAK) $(GO) run ./integration/cmd/servers -- $(GO) test $(RACE) -v -count=1 -timeout 0 -p 1 \
		./integration/crash ./integration/history ./integration/faults/... ./integration/lostreply/... ./integration/consume \
		./integration/publish ./integration/outboxlog ./integration/brokers ./integration/natsstore
	ONCE_SOAK=$(SOAK) $(PLAIN) -timeout 24h -run CarriesMessages ./integration/cosmosstore ./integration/dynamostore
	env CGO_ENABLED=0 GOFLAGS=-trimpath ONCE_SOAK=$(SOAK) $(GO) test -vet=off -v -count=1 -timeout 0 -run WorldsKeepTheLaws ./integration/world
	$(GO) run ./integration/cmd/servers -only postgres,mariadb,pgbouncer,rabbitmq,redis,azurite -- \
		$(GO) run ./integration/cmd/seedbugs
	$(MAKE) test-postgres test-dynamodb test-galera test-kafka test-sqs
	ONCE_SOAK=$(SOAK) $(MAKE) test-rabbitmq test-models

# All modules of VERSION, such as v0.1.0: commits, tags, and the proof that users can get them. Pushes nothing.
release:
	$(GO) run ./integration/cmd/release '$(VERSION)'

# The proof alone, where VERSION is checked out.
release-check:
	$(GO) run ./integration/cmd/release -check '$(VERSION)'
