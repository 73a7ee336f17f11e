#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the BPF programs with a second compiler and tests that object instead of the committed one:
# its programs must load, behave the same and use no more stack, so that the sources do not depend on
# one version of clang. Requires root.
#
#   hack/compilers.sh            with clang 16, which Debian 12 and Ubuntu 24.04 both package
#   hack/compilers.sh 22         with clang 22
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:-16}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

command=$(sed -n '/ -output-stem datapath /s|^//go:generate ||p' bpf/generate.go)
command=${command//clang-19/clang-$version}
command=${command//llvm-strip-19/llvm-strip-$version}
command=${command/ -output-stem / -output-dir $directory -output-stem }
(cd bpf && GOPACKAGE=bpf $command)
printf '{"Replace": {"%s": "%s"}}\n' "$PWD/bpf/datapath_bpfel.o" "$directory/datapath_bpfel.o" >"$directory/overlay.json"
go test -overlay "$directory/overlay.json" -run "${RUN:-^Test(Stack|Ingress|Egress|Tunnel)}" ./bpf
echo "compilers: the programs that clang $version makes pass"
