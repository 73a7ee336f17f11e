#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end tests, those behind the build tag e2e, and prints how long each
# package took. Their packages have other tests, too: make test-unit runs these.
# One lab at a time: packages share the machine's names, and so run one after another.
# Arguments go to the tests, for example: hack/test-e2e.sh -test.v
#
# A failure fails the run. With AGAIN=1 the tests that failed run once more, alone and on a
# lab of their own: those that pass then are listed as unsteady, and fail nothing. An
# unsteady test is a defect to be repaired, of the test or of what it tests. The machine is
# taken for the tests' own: a lab that somebody left up goes first.
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
# run PACKAGE NAMES ARGUMENTS…: NAMES with | between.
run() {
	local package=$1 names=$2
	shift 2
	(cd "$package" && "$binaries/$(basename "$package").test" -test.timeout 40m -test.run "^($names)\$" "$@") |
		tee "$binaries/output"
}

# failures prints the names of the tests that failed in the last run, with | between.
failures() {
	sed -n 's/^--- FAIL: \(Test[A-Za-z0-9_]*\) .*/\1/p' "$binaries/output" | sort -u | paste -sd '|'
}

failed=() unsteady=()
for package in "${packages[@]}"; do
	names=$(printf '%s\n' "${files[@]}" | grep "^$package/[^/]*\$" | xargs sed -n 's/^func \(Test[A-Za-z0-9_]*\)(t .*/\1/p' | paste -sd '|')
	# Without a name the expression below would select nothing, and nothing would pass.
	if [ -z "$names" ]; then
		echo "FAIL	$package	has files behind the build tag e2e, and no test in them: move them or the tag" >&2
		failed+=("$package")
		continue
	fi
	[ -z "${AGAIN:-}" ] || bin/lab down
	start=$SECONDS
	result=ok code=0
	run "$package" "$names" "$@" || result=FAIL code=$?
	# 1 is that of tests that failed; others, of a panic or of a time that is over, leave
	# tests that did not run.
	if [ $code = 1 ] && [ -n "${AGAIN:-}" ]; then
		# None failed where the lab did not come up: then all have not run.
		again=$(failures)
		names=${again:-$names}
		bin/lab down
		echo "again	$package	$names"
		if run "$package" "$names" "$@"; then
			result=unsteady
			unsteady+=("$package: $names")
		fi
	fi
	[ "$result" != FAIL ] || failed+=("$package")
	echo "$result	$package	$((SECONDS - start)) s"
done
if [ ${#unsteady[@]} -gt 0 ]; then
	echo "test-e2e: unsteady, failed once and passed when run again: ${unsteady[*]}" >&2
fi
if [ ${#failed[@]} -gt 0 ]; then
	echo "test-e2e: failed: ${failed[*]}" >&2
	exit 1
fi
