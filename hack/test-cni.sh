#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test/cni on a lab with each CNI of the arguments, by default ptp and flannel. kube-proxy's mode is
# nftables with ptp and Cilium, and iptables with the others; cilium-kpr runs without kube-proxy. The
# first build of Calico or Cilium takes many minutes.
#
# COUNT=N runs each N times. With AGAIN=1, failed runs are repeated once on a new lab and listed as
# flaky if they pass then. An existing lab is removed first.
set -euo pipefail
cd "$(dirname "$0")/.."

names=("$@")
[ ${#names[@]} -gt 0 ] || names=(ptp flannel)
mkdir -p dist/tests
binary=$(mktemp) output=$(mktemp)
trap 'rm -f "$binary" "$output"' EXIT
go test -c -tags cni -o "$binary" ./test/cni

# run CNI: one run on a new lab. make slowest reads the durations from dist/tests.
run() {
	local proxy=iptables code=0
	case $1 in ptp | cilium | cilium-vxlan) proxy=nftables ;; esac
	(cd test/cni && MILLRACE_LAB_CNI=$1 MILLRACE_LAB_KUBE_PROXY=$proxy "$binary" -test.timeout 20m -test.v) |
		tee "$output" || code=$?
	go tool test2json -t -p "test/cni:$1" <"$output" >"dist/tests/cni-$1.json"
	return "$code"
}

failed=() flaky=()
for name in "${names[@]}"; do
	for ((i = 1; i <= ${COUNT:-1}; i++)); do
		[ -z "${AGAIN:-}" ] || bin/lab down
		start=$SECONDS result=ok
		if ! run "$name"; then
			result=FAIL
			if [ -n "${AGAIN:-}" ] && run "$name"; then
				result=flaky
				flaky+=("$name")
			fi
		fi
		[ "$result" != FAIL ] || failed+=("$name")
		echo "$result	$name	$((SECONDS - start)) s"
	done
done
if [ ${#flaky[@]} -gt 0 ]; then
	echo "test-cni: flaky, failed once and passed when run again: ${flaky[*]}" >&2
fi
if [ ${#failed[@]} -gt 0 ]; then
	echo "test-cni: failed: ${failed[*]}" >&2
	exit 1
fi
