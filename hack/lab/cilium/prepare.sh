#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prepare.sh WORK OUTPUT: copies Cilium's manifests, and the sources of its BPF programs, which its
# agent compiles, to OUTPUT.
set -eu

go mod download github.com/cilium/cilium
module=$(go list -m -f '{{.Dir}}' github.com/cilium/cilium)
cp -r "$module/bpf" "$2/bpf"
chmod -R u+w "$2/bpf"
rm -rf "$2/bpf/tests" "$2/bpf/complexity-tests"

for file in "$module"/pkg/k8s/apis/cilium.io/client/crds/*/*.yaml; do
	echo ---
	cat "$file"
done >"$2/crds.yaml"
