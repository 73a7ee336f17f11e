#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the command line for SYSTEMS (linux darwin windows) into a subdirectory each of the given
# directory. Without a directory it only compiles.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}
for system in ${SYSTEMS:-linux darwin windows}; do
	suffix=
	[ "$system" != windows ] || suffix=.exe
	for arch in amd64 arm64; do
		output=/dev/null
		[ $# -eq 0 ] || output=$1/$system-$arch/millrace$suffix
		CGO_ENABLED=0 GOOS=$system GOARCH=$arch go build -buildvcs=false -trimpath \
			-ldflags "-s -w -X main.version=$version" -o "$output" ./cmd/millrace ||
			{ echo "build-cli: cmd/millrace does not build for $system/$arch" >&2; exit 1; }
	done
done
