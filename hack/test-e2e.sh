#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end tests (build tag e2e) and prints the duration of each test and package. Unit
# tests of the same packages are not run.
#
# Packages below test/ use the lab, of which a machine has one, and run sequentially. The others
# start their own API server. They run in three lanes in parallel with test/conformance, which
# measures no time, or after it. Nothing runs in parallel with the other packages or the start of the
# lab. Arguments are passed to the tests, for example: hack/test-e2e.sh -test.count=2
#
# With AGAIN=1, failed tests are repeated once, alone and on a new lab, and listed as flaky if they
# pass then. A flaky test is a defect, but does not fail the run. An existing lab is removed first.
#
# RUN=REGEXP runs only tests whose whole names match, sequentially.
#
# LONG=1 adds tests with the build tag long and runs others in full size, which takes too long for CI
# (make test-long).
#
# make slowest reads the durations from dist/tests.
set -euo pipefail
cd "$(dirname "$0")/.."

tags=e2e tagged='^//go:build e2e$'
if [ -n "${LONG:-}" ]; then
	tags='e2e long' tagged='^//go:build e2e( && long)?$'
fi
mapfile -t files < <(git grep -lE "$tagged" -- '*_test.go')
if [ ${#files[@]} -eq 0 ]; then
	echo "test-e2e: no test file has the build tag e2e: run it in a checkout with the tests" >&2
	exit 1
fi
mapfile -t packages < <(dirname -- "${files[@]}" | sort -u)
results=$PWD/dist/tests
mkdir -p "$results"
work=$(mktemp -d)
gotestsum="go tool -modfile=hack/tools/gotestsum/go.mod gotestsum"
declare -A beside=()
clean_up() {
	local lane
	for lane in "${!beside[@]}"; do
		kill -- "-${beside[$lane]}" 2>/dev/null || true
	done
	rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

# names PACKAGE prints its tests with the tag, separated by |.
names() {
	printf '%s\n' "${files[@]}" | grep "^$1/[^/]*\$" | xargs sed -n 's/^func \(Test[A-Za-z0-9_]*\)(t .*/\1/p' |
		{ grep -xE "${RUN:-.*}" || true; } | paste -sd '|'
}

if [ -n "${RUN:-}" ]; then
	all=("${packages[@]}") packages=()
	for package in "${all[@]}"; do
		[ -z "$(names "$package")" ] || packages+=("$package")
	done
	if [ ${#packages[@]} -eq 0 ]; then
		echo "test-e2e: RUN=$RUN matches no test behind the build tags $tags; LONG=1 adds the long ones" >&2
		exit 1
	fi
fi
# In parallel, on all processors.
go test -c -tags "$tags" -o "$work/" "${packages[@]/#/./}"

# Property tests use a fixed seed.
export RAPID_SEED=1

# run PACKAGE NAMES OUTPUT ARGUMENTS…: prints the duration of each test when it ends, and the output of
# failed tests at the end. It returns the exit code of the tests.
run() {
	local package=$1 names=$2 output=$3 code=0
	shift 3
	(cd "$package" && "$work/$(basename "$package").test" -test.timeout 40m -test.v=test2json -test.run "^($names)\$" "$@") |
		tee "$output" | sed -un 's/^[^ -]*\(--- .*\)/\1/p' || code=$?
	go tool test2json -t -p "$package" <"$output" >"$output.json"
	[ "$code" = 0 ] || $gotestsum --format standard-quiet --raw-command -- cat "$output.json" || true
	return "$code"
}

# lane PACKAGE…: runs the packages sequentially and stores their exit codes.
lane() {
	local package output code start
	for package in "$@"; do
		output=$work/${package//\//-}
		start=$SECONDS code=0
		[[ -z "${AGAIN:-}" || "$package" != test/* ]] || bin/lab down
		echo "run	$package"
		run "$package" "$(names "$package")" "$output" "${arguments[@]}" || code=$?
		cp "$output.json" "$results/e2e-${package//\//-}.json"
		echo "$code" >"$output.code"
		echo "$([ "$code" = 0 ] && echo ok || echo FAIL)	$package	$((SECONDS - start)) s"
	done
}

# await_lab LANE returns when the lab has a gateway, when the lane has ended, or after ten minutes.
await_lab() {
	local deadline=$((SECONDS + 600))
	while kill -0 "$1" 2>/dev/null && [ $SECONDS -lt $deadline ]; do
		! bin/lab kubectl -n millrace-system get deployment/millrace-gateway >/dev/null 2>&1 || return 0
		sleep 2
	done
}

arguments=("$@")
lab=() own=()
for package in "${packages[@]}"; do
	# Without a name the expression of run would select no test and pass.
	if [ -z "$(names "$package")" ]; then
		echo "FAIL	$package	has files behind the build tag e2e, and no test in them: move them or the tag" >&2
		exit 1
	fi
	case $package in
	test/conformance) ;;
	test/*) lab+=("$package") ;;
	*) own+=("$package") ;;
	esac
done
# beside_conformance runs the packages with their own API server in parallel with test/conformance.
beside_conformance() {
	# By duration: test/conformance and these two, the agent's, and the others.
	local name others after=(gateway/controller liveapi)
	mapfile -t others < <(printf '%s\n' "${own[@]}" | grep -vxF -e lbagent "${after[@]/#/-e}")
	set -m
	lane test/conformance "${after[@]}" </dev/null &
	beside[conformance]=$!
	await_lab "${beside[conformance]}"
	lane lbagent >"$work/beside-agent" 2>&1 </dev/null &
	beside[agent]=$!
	lane "${others[@]}" >"$work/beside-others" 2>&1 </dev/null &
	beside[others]=$!
	set +m
	wait "${beside[conformance]}" || echo "test-e2e: test/conformance ended with $?" >&2
	unset "beside[conformance]"
	for name in agent others; do
		wait "${beside[$name]}" || echo "test-e2e: what ran beside test/conformance ended with $?" >&2
		unset "beside[$name]"
		cat "$work/beside-$name"
	done
}

if [ -n "${RUN:-}" ]; then
	lane "${packages[@]}"
else
	beside_conformance
	lane "${lab[@]}"
fi

failed=() flaky=()
for package in "${packages[@]}"; do
	output=$work/${package//\//-}
	code=$(cat "$output.code" || echo "none")
	[ "$code" != 0 ] || continue
	# 1 means failed tests; other codes, of a panic or a timeout, leave tests that did not run.
	if [ "$code" = 1 ] && [ -n "${AGAIN:-}" ]; then
		again=$(sed -n 's/.*"Action":"fail".*"Test":"\(Test[A-Za-z0-9_]*\)".*/\1/p' "$output.json" | sort -u | paste -sd '|')
		# If the lab did not start, no test failed, because none ran.
		again=${again:-$(names "$package")}
		[[ "$package" != test/* ]] || bin/lab down
		echo "again	$package	$again"
		if run "$package" "$again" "$output" "${arguments[@]}"; then
			flaky+=("$package: $again")
			continue
		fi
	fi
	failed+=("$package")
done
if [ ${#flaky[@]} -gt 0 ]; then
	echo "test-e2e: flaky, failed once and passed when run again: ${flaky[*]}" >&2
fi
if [ ${#failed[@]} -gt 0 ]; then
	echo "test-e2e: failed: ${failed[*]}" >&2
	exit 1
fi
