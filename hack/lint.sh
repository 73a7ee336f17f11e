#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the sources with golangci-lint, which go builds into its cache from the
# versions pinned in hack/tools/golangci, and the scripts with shellcheck.
# Arguments go to `golangci-lint run`: packages, or --fix.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v shellcheck >/dev/null; then
	echo "lint: shellcheck is missing; run hack/prerequisites.sh --develop" >&2
	exit 1
fi
mapfile -d '' scripts < <(git ls-files -z -- '*.sh' .ci/run)
shellcheck -- "${scripts[@]}"
go tool -modfile=hack/tools/golangci/go.mod golangci-lint run --allow-serial-runners "$@"
