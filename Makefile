# SPDX-License-Identifier: Apache-2.0

SHELL       := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
ARCH     ?= $(shell go env GOARCH)
BIN      := bin
IMAGES   := dist/images
REGISTRY ?= millrace.test
TAG      ?= dev

# The same flags for programs, tests and tools, so that they share the build cache. Without DWARF,
# compilation takes 20 % less time; without symbol tables, linking a test 25 %.
export GOFLAGS := -buildvcs=false -trimpath -gcflags=all=-dwarf=false -ldflags=-s
export CGO_ENABLED := 0
STATIC := GOARCH=$(ARCH) go build -ldflags "-s -w -X main.version=$(VERSION)"

.PHONY: help
help: ## Show the targets.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the programs into bin/.
	@mkdir -p $(BIN)
	$(STATIC) -o $(BIN)/ ./cmd/operator ./cmd/lbagent ./cmd/lbbfd ./cmd/millrace ./cmd/gateway ./cmd/lbproxy ./cmd/liveapi
	ln -sf millrace $(BIN)/kubectl-millrace
	ln -sf millrace $(BIN)/kubectl_complete-millrace
	go build -o $(BIN)/ ./test/lab ./test/echo ./test/flows

.PHONY: build-cli
build-cli: ## Build the command line for linux, darwin and windows into bin/cli/.
	@mkdir -p $(BIN)/cli
	VERSION=$(VERSION) hack/build-cli.sh $(BIN)/cli

.PHONY: generate
generate: ## Generate deepcopy, CRDs, roles and BPF objects (needs clang-19).
	hack/generate.sh

.PHONY: verify
verify: prerequisites-develop ## Generate everything again and fail on a difference.
	hack/verify.sh

.PHONY: hooks
hooks: ## Install the hook that verifies the messages of commits.
	git config core.hooksPath hack/hooks

.PHONY: lint
lint: prerequisites-develop ## Run golangci-lint, shellcheck, clang-format and markdownlint.
	hack/lint.sh

# Packages whose tests need root.
ROOT_TESTS := (bpf|test|gateway/test|lbagent/test|lbagent/internal/dataplane)(/.*)?|lbagent(/bfd)?|lbagent/internal/(bfd/engine|bgp|canary|checkpoint|dad|forwardpolicy|healthport|l2|netdev|preflight|probe|snapshot|uplink)|gateway/proxy/internal/upstream
.PHONY: check
check: ## Run the tests that need neither root nor the lab (four minutes with warm caches).
	@TIMEFORMAT='check took %0R s'; time go test -timeout 20m $$(go list ./... | grep -vE '/millrace/($(ROOT_TESTS))$$')

.PHONY: test
test: notice-test test-unit test-e2e ## Run every test: pure, kernel and the whole path on a real cluster (root).

# The first line of a long target: its effects and duration.
.PHONY: notice-test notice-demo
notice-test:
	@echo 'test: installs Debian packages, builds everything, runs the unit tests and the tests on a cluster in network' \
		'namespaces of this machine: about 30 minutes, the first time 45. Nothing outside is changed.'
notice-demo:
	@echo 'demo: installs Debian packages, builds programs and images, starts a cluster in network namespaces of this' \
		'machine, shows 16 steps and removes the cluster: about two minutes, the first time ten.'

# Property tests use a fixed seed, so that a failure is caused by the current change; make fuzz uses
# random ones. AGAIN=1 is for CI, with fewer cases: failed tests are repeated once and listed as
# flaky if they pass then. make lint vets all packages there.
TIMES     := dist/tests
GOTESTSUM := go tool -modfile=hack/tools/gotestsum/go.mod gotestsum
.PHONY: test-unit
test-unit: prerequisites ## Run the tests of the packages; those of the data plane and BGP need root.
	@mkdir -p $(TIMES)
	@TIMEFORMAT='test-unit took %0R s'; time RAPID_SEED=1 \
		$(if $(AGAIN),RAPID_CHECKS=40 $(GOTESTSUM) --rerun-fails=1 --rerun-fails-max-failures=5 --jsonfile $(TIMES)/unit.json --packages=./... -- -p 3 -vet=off -timeout 20m,go test -timeout 20m ./...)

.PHONY: test-e2e
test-e2e: prerequisites build image ## Run the end-to-end tests on a real cluster (root); RUN=NAME for one, LONG=1 for all, at full size.
	$(if $(LONG),@hack/prerequisites.sh --metallb)
	@TIMEFORMAT='test-e2e took %0R s'; time AGAIN=$(AGAIN) LONG=$(LONG) RUN='$(RUN)' hack/test-e2e.sh

# COUNT=5 repeats the tests with each CNI, on a new lab each time; AGAIN=1 as in test-e2e.
.PHONY: test-cni
test-cni: prerequisites build image ## Run the whole path in short with each CNI (root); CNI="NAME…", COUNT=N.
	$(if $(filter calico cilium%,$(CNI)),@hack/prerequisites.sh --cni)
	@TIMEFORMAT='test-cni took %0R s'; time AGAIN=$(AGAIN) COUNT=$(COUNT) hack/test-cni.sh $(CNI)

.PHONY: slowest
slowest: ## Print the ten slowest tests of the last runs of test-e2e and test-cni, and of test-unit with AGAIN=1.
	@sed -nE 's/.*"Action":"(pass|fail)","Package":"([^"]*)","Test":"([^"/]*)","Elapsed":([0-9.]+).*/\4 s\t\2 \3/p' \
		/dev/null $(wildcard $(TIMES)/*.json) | sort -rn | sed -n 1,10p

.PHONY: test-ui
test-ui: ## Hold the page of millrace ui in Debian's Chromium: drawings, time, names, requests; pictures are in dist/ui.
	hack/prerequisites.sh --browser
	go test -tags long -count 1 -timeout 10m -v -run '^TestBrowser' ./cmd/millrace/internal/ui

# Tests that take too long for CI: more kernels, CNIs and load.
.PHONY: test-long
test-long: ## Run the tests that are too long for CI, one after another (root, hours).
	$(MAKE) docs
	$(MAKE) build-cli
	$(MAKE) test-e2e LONG=1
	$(MAKE) test-load
	go test -tags long -count 1 -timeout 0 -run '^(TestInterop|TestSlowRouters)$$' -v ./lbagent/internal/bgp
	hack/prerequisites.sh --hostile
	go test -count 1 -timeout 0 -v -run 'TestRandom|TestPoisoning' ./gateway/test/fuzz -cases 100000 -programs -poisonings 100000
	go test -count 1 -timeout 0 -v ./gateway/test/loadtest -full
	$(MAKE) test-ui
	$(MAKE) test-cni CNI="ptp flannel flannel-host-gw calico cilium cilium-vxlan cilium-kpr"
	$(MAKE) test-kernels
	$(MAKE) test-kubernetes-e2e
	$(MAKE) test-race
	$(MAKE) fuzz
	$(MAKE) flood

.PHONY: vulnerabilities
vulnerabilities: ## Search the programs for known vulnerabilities, in a copy of Go's database.
	go test -tags 'e2e long' -count 1 -run '^TestVulnerabilities$$' -v ./hack/release

.PHONY: test-load
test-load: prerequisites build image ## Hold that requests at a rate survive all that changes in layer 7 (root, five minutes).
	go test -tags 'e2e load' -run '^TestIngressUnderLoad$$' -count $(or $(COUNT),1) -timeout 0 -v ./test/e2e

# Limited by frames instead of time, because Go's fuzzing sometimes fails at its time limit
# (go.dev/issue/75804).
PACKETS ?= 10000000
MUTANTS ?= 1000000
CHECKS  ?= 5000
WORLDS  ?= 1000000

.PHONY: fuzz
fuzz: ## Hold the programs to the model with PACKETS packets, parse PACKETS BGP messages, send MUTANTS of the fixtures, try properties CHECKS times, compare WORLDS worlds of tenants (root).
	RAPID_CHECKS=$$(($(WORLDS) / 40)) go test -timeout 0 -run TestNonInterference ./gateway/route/ownership
	RAPID_CHECKS=$(CHECKS) go test -timeout 0 $$(grep -rl --include='*_test.go' pgregory.net/rapid . | xargs dirname | sort -u)
	go test -run TestDifferential -timeout 0 -v ./lbagent/test/reference -packets $(PACKETS)
	go test -run '^$$' -fuzz FuzzIngress -fuzztime $(MUTANTS)x ./bpf
	go test -run '^$$' -fuzz FuzzEgress -fuzztime $(MUTANTS)x ./bpf
	go test -run '^$$' -fuzz FuzzTunnelTag -fuzztime $(MUTANTS)x ./bpf
	go test -run '^$$' -fuzz FuzzMessages -fuzztime $(PACKETS)x ./lbagent/internal/bgp
	go test -run '^$$' -fuzz FuzzOpen -fuzztime $(PACKETS)x ./lbagent/internal/bgp
	go test -run '^$$' -fuzz FuzzResponse -fuzztime $(PACKETS)x ./gateway/proxy/internal/h1
	go test -run '^$$' -fuzz FuzzRequest -fuzztime $(PACKETS)x ./gateway/proxy/internal/h1

.PHONY: test-race
test-race: prerequisites ## Kill agent, operators and API server for CHAOS=10m, and run the packages, with the race detector (root).
	CGO_ENABLED=1 MILLRACE_CHAOS=$(or $(CHAOS),10m) go test -race -tags 'e2e long' -count 1 -timeout 0 -run '^TestChaos$$' -v ./lbagent
	CGO_ENABLED=1 MILLRACE_CHAOS=$(or $(CHAOS),10m) go test -race -tags 'e2e long' -count 1 -timeout 0 -run '^TestConcurrentOperators$$' -v ./operator
	CGO_ENABLED=1 go test -race -vet=off -count 1 -timeout 60m ./lbagent/internal/... ./operator/internal/... ./gateway/...

.PHONY: test-kernels
test-kernels: ## Run the tests that depend on the kernel, on the running one and under qemu on others (root).
	@hack/prerequisites.sh --kernels
	go run ./test/kernels $(if $(RUN),-run '$(RUN)') $(if $(COUNT),-count $(COUNT)) $(KERNELS)

# STRICT=1 fails if a ratio is above its limit. PIN=PATH pins the program for measurements by other
# tools. KATRAN=PATH is a checkout of github.com/facebookincubator/katran.
.PHONY: bench
bench: ## Measure what a packet costs, beside floors (root); STRICT=1, RUN=REGEXP, KATRAN=PATH, BESIDE=OBJECT, PIN=PATH.
	@$(if $(KATRAN),hack/prerequisites.sh --develop)
	go run ./lbagent/test/bench $(if $(STRICT),-strict) $(if $(PIN),-pin $(PIN)) $(if $(RUN),-run '$(RUN)') $(if $(BESIDE),-beside $(BESIDE)) $(if $(KATRAN),-katran $(KATRAN))

.PHONY: flood
flood: ## Send floods of ten million packets each through the program (root, hours).
	MILLRACE_FLOOD=10000000 go test -count 1 -timeout 6h -run TestFlood -v ./bpf
	MILLRACE_FLOOD=1000000 go test -count 1 -timeout 2h -run 'TestUntrusted|TestMovedFlows' -v ./lbagent/test/reference

.PHONY: bench-control
bench-control: prerequisites ## Measure agent and operator in a generated cluster (root); NODES=1000, SERVICES=10000, CREATED=2000, WAITING=5000, STRICT=1.
	MILLRACE_NODES=$(or $(NODES),1000) MILLRACE_SERVICES=$(or $(SERVICES),10000) MILLRACE_MOVES=1000 STRICT=$(STRICT) \
		go test -count 1 -timeout 60m -run '^TestControlPlane$$' -v ./lbagent
	MILLRACE_CREATED=$(or $(CREATED),2000) STRICT=$(STRICT) \
		go test -tags e2e -count 1 -timeout 60m -run '^TestControlPlane$$' -v ./operator
	MILLRACE_NODES=$(or $(NODES),1000) STRICT=$(STRICT) \
		go test -tags 'e2e long' -count 1 -timeout 60m -run '^TestManyNodes$$' -v ./operator
	MILLRACE_WAITING=$(or $(WAITING),5000) STRICT=$(STRICT) \
		go test -tags 'e2e long' -count 1 -timeout 60m -run '^TestManyWaiting$$' -v ./operator

.PHONY: bench-vips
bench-vips: ## Time one more Service beside VIPS (20,000), from its creation to a route in the router's kernel (root, half an hour).
	MILLRACE_VIPS=$(or $(VIPS),20000) go test -tags 'e2e long' -count 1 -timeout 60m -run '^TestOneMore$$' -v ./lbagent

# STRICT=1 fails if a ratio is below its target.
.PHONY: bench-gateway
bench-gateway: build ## Compare our proxy with HAProxy, nginx and Caddy (root); STRICT=1, RUN=REGEXP, ROUNDS=N.
	@hack/prerequisites.sh --bench-gateway
	go build -modfile=hack/tools/caddy/go.mod -o $(BIN)/caddy github.com/caddyserver/caddy/v2/cmd/caddy
	go run ./gateway/test/bench -programs $(BIN) $(if $(STRICT),-strict) $(if $(RUN),-run '$(RUN)') $(if $(ROUNDS),-rounds $(ROUNDS))

.PHONY: bench-gateway-size
bench-gateway-size: build ## Measure one change among 5,000 routes, 10,000 hosts and 5,000 certificates; STRICT=1.
	go run ./gateway/test/size -programs $(BIN) $(if $(STRICT),-strict)

# Image contents are deterministic: the same sources give the same digest.
.PHONY: image
image: build ## Assemble the OCI images of all programs and echo into dist/images/, without Docker.
	@mkdir -p $(IMAGES)
	go run ./hack/mkimage --arch $(ARCH) --name $(REGISTRY)/operator:$(TAG) --entrypoint /operator --user 65532 --output $(IMAGES)/operator-$(ARCH).tar $(BIN)/operator:/operator
	go run ./hack/mkimage --arch $(ARCH) --name $(REGISTRY)/lbagent:$(TAG) --entrypoint /lbagent --output $(IMAGES)/lbagent-$(ARCH).tar $(BIN)/lbagent:/lbagent $(BIN)/lbbfd:/lbbfd
	go run ./hack/mkimage --arch $(ARCH) --name $(REGISTRY)/gateway:$(TAG) --entrypoint /gateway --user 65532 --output $(IMAGES)/gateway-$(ARCH).tar $(BIN)/gateway:/gateway
	go run ./hack/mkimage --arch $(ARCH) --name $(REGISTRY)/liveapi:$(TAG) --entrypoint /liveapi --user 65532 --output $(IMAGES)/liveapi-$(ARCH).tar $(BIN)/liveapi:/liveapi
	go run ./hack/mkimage --arch $(ARCH) --name $(REGISTRY)/lbproxy:$(TAG) --entrypoint /lbproxy --user 65532 --output $(IMAGES)/lbproxy-$(ARCH).tar $(BIN)/lbproxy:/lbproxy
	go run ./hack/mkimage --arch $(ARCH) --name $(REGISTRY)/echo:$(TAG) --entrypoint /echo --output $(IMAGES)/echo-$(ARCH).tar $(BIN)/echo:/echo

.PHONY: lab-up
lab-up: prerequisites build ## Bring up the three-node cluster with its router (root).
	$(BIN)/lab up

.PHONY: lab-down
lab-down: build ## Take the cluster down; nothing is left behind.
	$(BIN)/lab down

.PHONY: demo
demo: notice-demo prerequisites build image ## Show the whole path on a real cluster, step by step (root).
	go run ./test/demo

.PHONY: demo-repeat
demo-repeat: prerequisites ## Run the demo COUNT times from a fresh clone on busy processors (root).
	hack/demo-repeat.sh $(COUNT)

# The report is dist/conformance/report.yaml.
.PHONY: conformance
conformance: prerequisites build image ## Run Gateway API's own tests on a real cluster (root); TEST=NAME for one of them.
	go test -count 1 -timeout 40m -tags e2e -v ./test/conformance $(if $(TEST),-args -run-test=$(TEST))

.PHONY: chart
chart: ## Write the Helm chart of this checkout into dist/chart/millrace.
	go run ./hack/mkchart

# Reproducible: builds of a commit are identical. PUSH=1 pushes the images to REGISTRY with the
# credentials of `docker login`. SIGN_KEY=FILE, or $MILLRACE_SIGNING_KEY, signs the release with a
# PEM key.
RELEASE_REGISTRY := $(if $(filter millrace.test,$(REGISTRY)),ghcr.io/millrace-lb,$(REGISTRY))
.PHONY: release
release: ## Make what users install into dist/release/; VERSION=v0.1.0, REGISTRY=HOST/PATH, PUSH=1, SIGN_KEY=FILE.
	rm -rf dist/programs
	for arch in amd64 arm64; do \
		mkdir -p dist/programs/linux-$$arch; \
		GOOS=linux GOARCH=$$arch go build -ldflags "-s -w -X main.version=$(VERSION)" -o dist/programs/linux-$$arch/ \
			./cmd/operator ./cmd/lbagent ./cmd/lbbfd ./cmd/gateway ./cmd/lbproxy ./cmd/liveapi ./cmd/millrace; \
	done
	VERSION=$(VERSION) SYSTEMS="darwin windows" hack/build-cli.sh dist/programs
	go run ./hack/release --version $(VERSION) --registry $(RELEASE_REGISTRY) \
		--revision "$$(git rev-parse HEAD)" --source-date-epoch "$$(git log -1 --format=%ct)" \
		--millrace dist/programs/linux-$$(go env GOHOSTARCH)/millrace $(if $(PUSH),--push) $(if $(SIGN_KEY),--sign-key $(SIGN_KEY))

# Not part of CI: the tests take half an hour, and their first build several minutes.
.PHONY: test-kubernetes-e2e
test-kubernetes-e2e: build image ## Run Kubernetes' own tests of LoadBalancers on the lab (root); FOCUS=REGEXP.
	@hack/prerequisites.sh --kubernetes-e2e
	$(BIN)/lab kubernetes-e2e --build-only
	$(BIN)/lab up --ipv4-nodes
	result=0; $(BIN)/lab kubernetes-e2e $(if $(FOCUS),--focus '$(FOCUS)') || result=$$?; $(BIN)/lab down; exit $$result

.PHONY: prerequisites
prerequisites:
	@hack/prerequisites.sh --runtime

.PHONY: prerequisites-develop
prerequisites-develop:
	@hack/prerequisites.sh --develop

.PHONY: docs
docs: ## Build the documentation's site into dist/site; dead links and orphaned pages are errors.
	@hack/prerequisites.sh --docs
	hack/site/build.sh

.PHONY: clean
clean: ## Remove what was built.
	rm -rf $(BIN) dist
