# Every target needs Go and make. A test that needs a PostgreSQL server takes
# the first that there is: the one that HOLDFAST_DSN names, a container, the one
# that is installed, or binaries that it downloads.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The newest drivers that the laws are tested on. The oldest are in go.mod.
PQ_NEWEST = v1.12.3
PGX_NEWEST = v5.13.0

# The race detector needs a C compiler on most systems.
RACE := $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)

# The modules, by their directories; those of integration need a server.
MODULES = . adapters/etcdlock adapters/gocronlock adapters/gooselock adapters/migratelock pglock/cmd/pglock integration integration/etcd
in_each = for module in $(1); do (cd $$module && $(2)) || exit 1; done

GOTESTFLAGS =
GOTEST = go test -count=1 -timeout 10m $(RACE) $(GOTESTFLAGS)
SERVERTEST = cd integration && $(GOTEST) -parallel 8

.PHONY: help lint test unit etcd demo bench faults chaos test-docker test-versions test-drivers image

help: ## list the targets (the default)
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | awk -F '\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

lint: ## check formatting; vet and staticcheck every module
	@files=$$(gofmt -l .) && if [ -n "$$files" ]; then echo "gofmt would change:" $$files; exit 1; fi
	$(call in_each,$(MODULES),go vet ./... && go run $(STATICCHECK) ./...)

test: unit etcd ## run every test
	$(SERVERTEST) -p 1 ./...

unit: ## run the tests that need no server
	$(call in_each,$(filter-out integration%,$(MODULES)),$(GOTEST) ./...)

etcd: ## test the locks on etcd, on a server within the tests
	cd integration/etcd && $(GOTEST) ./...

demo: ## watch workers hand one lock over, on a server that the demo starts
	cd integration && go run ./demo

bench: ## measure speed beside other libraries, and write it to docs/benchmarks.md
	cd integration && go run ./bench -docs ../docs

faults: ## break networks, servers and poolers for real (Linux, as root)
	$(SERVERTEST) ./faults

chaos: ## break things for a long time, and write the figures to docs/chaos.md
	cd integration && CHAOS_SECONDS=1400 CHAOS_REPORT=../../docs/chaos.md go test -count=1 -timeout 90m -run '^TestChaos$$' -v ./chaos

test-docker: ## test the laws on a container; HOLDFAST_IMAGE names its image
	export HOLDFAST_PROVIDER=docker && $(SERVERTEST) -run 'Laws|Container' . ./postgres

test-versions: ## test the laws on PostgreSQL 13, 15 and 18
	for version in 13 15 18; do \
		(export HOLDFAST_POSTGRES_VERSION=$$version && $(SERVERTEST) -run Laws .) || exit 1; \
	done

test-drivers: ## test the laws with the newest drivers
	dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cd integration && cp go.mod go.sum "$$dir" && \
	go get -modfile="$$dir/go.mod" github.com/lib/pq@$(PQ_NEWEST) github.com/jackc/pgx/v5@$(PGX_NEWEST) && \
	$(GOTEST) -parallel 8 -modfile="$$dir/go.mod" -run Laws .

image: ## build an image of PostgreSQL 15 from Debian's packages (as root)
	integration/image/engine
	integration/image/build
