#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the sources with golangci-lint, which go builds into its cache from the
# versions pinned in hack/tools/golangci, the scripts with shellcheck, the BPF programs with
# clang-format 19, because other versions format some lines differently, and the pages with
# markdownlint.
# Arguments go to `golangci-lint run`: packages, or --fix.
set -euo pipefail
cd "$(dirname "$0")/.."

for program in shellcheck clang-format-19 npm; do
	if ! command -v "$program" >/dev/null; then
		echo "lint: $program is missing; run hack/prerequisites.sh --develop" >&2
		exit 1
	fi
done
mapfile -d '' scripts < <(git ls-files -z -- '*.sh' .ci/run)
shellcheck -- "${scripts[@]}"
mapfile -d '' sources < <(git ls-files -z -- 'bpf/src/*.c' 'bpf/src/*.h')
if ! clang-format-19 --dry-run -Werror -- "${sources[@]}"; then
	echo "lint: bpf/src is not as .clang-format has it; run: clang-format-19 -i bpf/src/*.[ch]" >&2
	exit 1
fi
# Node's packages are installed into dist, because go would search the sources for packages.
markdownlint=dist/markdownlint
mkdir -p "$markdownlint"
cp hack/tools/markdownlint/*.json "$markdownlint/"
# npm does not retry all network errors.
for attempt in 1 2 3 4; do
	npm ci --prefix "$markdownlint" --prefer-offline --ignore-scripts --no-audit --no-fund --loglevel=error && break
	[ "$attempt" -lt 4 ] || exit 1
	sleep $((5 * attempt))
done
"$markdownlint/node_modules/.bin/markdownlint-cli2"
go tool -modfile=hack/tools/golangci/go.mod golangci-lint run --allow-serial-runners "$@"
