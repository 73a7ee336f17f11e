#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test/cni once on a lab of each CNI: those named, else ptp and flannel. kube-proxy's mode is
# nftables with ptp and Cilium, and iptables with the others; cilium-kpr has none. The programs of
# Calico and Cilium take many minutes to build at the first time.
#
# With COUNT=N each runs N times. With AGAIN=1 what failed runs once more, on a lab of its own:
# what passes then is listed as unsteady, and fails nothing. A lab that is up goes first.
set -euo pipefail
cd "$(dirname "$0")/.."

names=("$@")
[ ${#names[@]} -gt 0 ] || names=(ptp flannel)
mkdir -p dist/tests
binary=$(mktemp) output=$(mktemp)
trap 'rm -f "$binary" "$output"' EXIT
go test -c -tags cni -o "$binary" ./test/cni

# run CNI: one run on a lab of its own. make slowest reads what the tests took from dist/tests.
run() {
	local proxy=iptables code=0
	case $1 in ptp | cilium | cilium-vxlan) proxy=nftables ;; esac
	(cd test/cni && MILLRACE_LAB_CNI=$1 MILLRACE_LAB_KUBE_PROXY=$proxy "$binary" -test.timeout 20m -test.v) |
		tee "$output" || code=$?
	go tool test2json -t -p "test/cni:$1" <"$output" >"dist/tests/cni-$1.json"
	return "$code"
}

failed=() unsteady=()
for name in "${names[@]}"; do
	for ((i = 1; i <= ${COUNT:-1}; i++)); do
		[ -z "${AGAIN:-}" ] || bin/lab down
		start=$SECONDS result=ok
		if ! run "$name"; then
			result=FAIL
			if [ -n "${AGAIN:-}" ] && run "$name"; then
				result=unsteady
				unsteady+=("$name")
			fi
		fi
		[ "$result" != FAIL ] || failed+=("$name")
		echo "$result	$name	$((SECONDS - start)) s"
	done
done
if [ ${#unsteady[@]} -gt 0 ]; then
	echo "test-cni: unsteady, failed once and passed when run again: ${unsteady[*]}" >&2
fi
if [ ${#failed[@]} -gt 0 ]; then
	echo "test-cni: failed: ${failed[*]}" >&2
	exit 1
fi
