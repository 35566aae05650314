# Everything is a plain go command; the targets only spare you the typing.
GO      ?= go
SOAK    ?= 1m
# Packages that wait for servers leave a processor to others.
PACKAGES := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
MODULES := $(shell $(GO) list -m -f '{{.Dir}}' 2>/dev/null) $(CURDIR)/bench/peers $(CURDIR)/observe/alerts
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

.PHONY: demo test lint bench soak

demo:
	$(GO) run ./cmd/once demo

# The servers tool starts private servers, runs the command with their addresses in its environment, and stops them.
# What vet has to say is said by lint. The alerts are tested with the engine of Prometheus, whose requirements stay out of the workspace.
test:
	$(GO) run ./integration/cmd/servers -- $(GO) test -race -vet=off -p $(PACKAGES) -timeout 15m work
	cd observe/alerts && GOWORK=off $(GO) test -timeout 5m ./...

lint:
	./.ci/lint $(STATICCHECK) $(GOVULNCHECK) $(MODULES)

bench:
	$(GO) run ./integration/cmd/servers -- $(GO) run ./bench

# Proofs, each for as long as SOAK says, and then the seeded bugs.
soak:
	ONCE_SOAK=$(SOAK) $(GO) run ./integration/cmd/servers -- $(GO) test -race -v -count=1 -timeout 0 -p 1 \
		./integration/crash ./integration/history ./integration/faults/... ./integration/lostreply/... ./integration/consume \
		./integration/publish ./integration/outboxlog
	$(GO) run ./integration/cmd/servers -- $(GO) run ./integration/cmd/seedbugs
