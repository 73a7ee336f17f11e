#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end tests, those behind the build tag e2e, and prints how long each
# package took. Their packages have other tests, too: make test-unit runs these.
# One lab at a time: packages share the machine's names, and so run one after another.
# Arguments go to the tests, for example: hack/test-e2e.sh -test.v
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t files < <(git grep -l '^//go:build e2e' -- '*_test.go')
if [ ${#files[@]} -eq 0 ]; then
	echo "test-e2e: no test file has the build tag e2e: run it in a checkout with the tests" >&2
	exit 1
fi
mapfile -t packages < <(dirname -- "${files[@]}" | sort -u)
binaries=$(mktemp -d)
trap 'rm -rf "$binaries"' EXIT
# All at once, on all processors.
go test -c -tags e2e -o "$binaries/" "${packages[@]/#/./}"

# The properties among them are tried with the same cases each time.
export RAPID_SEED=1
failed=()
for package in "${packages[@]}"; do
	names=$(printf '%s\n' "${files[@]}" | grep "^$package/[^/]*\$" | xargs sed -n 's/^func \(Test[A-Za-z0-9_]*\)(t .*/\1/p' | paste -sd '|')
	# Without a name the expression below would select nothing, and nothing would pass.
	if [ -z "$names" ]; then
		echo "FAIL	$package	has files behind the build tag e2e, and no test in them: move them or the tag" >&2
		failed+=("$package")
		continue
	fi
	start=$SECONDS
	result=ok
	(cd "$package" && "$binaries/$(basename "$package").test" -test.timeout 40m -test.run "^($names)\$" "$@") || result=FAIL
	[ "$result" = ok ] || failed+=("$package")
	echo "$result	$package	$((SECONDS - start)) s"
done
if [ ${#failed[@]} -gt 0 ]; then
	echo "test-e2e: failed: ${failed[*]}" >&2
	exit 1
fi
