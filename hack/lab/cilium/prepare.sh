#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# prepare.sh WORK OUTPUT: puts the sources of Cilium's BPF programs, which its agent compiles,
# beside the programs.
set -eu

go mod download github.com/cilium/cilium
module=$(go list -m -f '{{.Dir}}' github.com/cilium/cilium)
cp -r "$module/bpf" "$2/bpf"
chmod -R u+w "$2/bpf"
rm -rf "$2/bpf/tests" "$2/bpf/complexity-tests"
