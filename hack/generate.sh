#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Generates all generated files: deepcopy, CRDs, roles, the OpenAPI schemas of the aggregated API,
# the BPF objects, the messages of the gateway, and the CRDs of Gateway API from its module.
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
# The aggregated API also serves the Kubernetes types that its types contain.
meta=(k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version)
go tool openapi-gen \
	--go-header-file <(printf '// SPDX-License-Identifier: Apache-2.0\n\n') \
	--output-dir liveapi/internal/openapi --output-pkg github.com/millrace-lb/millrace/liveapi/internal/openapi \
	--output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go \
	--report-filename /dev/null "${meta[@]/#/--readonly-pkg=}" "${meta[@]}" ./api/live/v1alpha1
go generate ./bpf ./lbagent/test/bench ./gateway/resource

# Unmodified, but only the implemented kinds.
crds=$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd
for channel in standard experimental; do
	rm -f config/gateway-api/$channel/gateway.networking.k8s.io_*.yaml
	install -m 644 "$crds/$channel"/gateway.networking.k8s.io_*.yaml config/gateway-api/$channel/
done
