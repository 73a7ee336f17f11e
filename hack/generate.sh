#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Generates everything in the tree that is made from other sources of the tree:
# deepcopy, CRDs, roles, the BPF objects and the messages of the gateway.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-19 >/dev/null; then
	echo "generate: clang-19 is missing; run hack/prerequisites.sh --develop" >&2
	exit 1
fi
go tool controller-gen object paths=./api/... \
	crd:crdVersions=v1 output:crd:dir=config/crd
go tool controller-gen rbac:roleName=millrace-operator paths=./operator/... output:rbac:dir=config/rbac/operator
go tool controller-gen rbac:roleName=millrace-agent paths=./lbagent/... output:rbac:dir=config/rbac/agent
go tool controller-gen rbac:roleName=millrace-gateway paths=./gateway/... output:rbac:dir=config/rbac/gateway
go generate ./bpf ./lbagent/test/bench ./gateway/resource
