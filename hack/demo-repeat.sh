#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs `make demo` COUNT times in a new clone of HEAD while other processes use all CPUs, and then
# removes a lab during a concurrent `ip netns add`. Requires root.
#
#   hack/demo-repeat.sh [COUNT]    by default 20 times
#
# LOCK=FILE locks the file during each use of the lab, for machines with other users of it. The output
# is stored in dist/logs.
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-20}
lock=${LOCK:-$(mktemp)}
logs=$PWD/dist/logs/repeat-$(date -u +%Y%m%d-%H%M%S)
clone=$(mktemp -d)/millrace
other=demo-repeat-$$
busy=()
mkdir -p "$logs"
clean_up() {
	[ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null || true
	ip netns del "$other" 2>/dev/null || true
	# Keep the clone of a failed run.
	[ -d "$clone/dist/logs" ] || rm -rf "$(dirname "$clone")"
}
trap clean_up EXIT

# left prints the remains of a lab on this machine.
left() {
	grep -E 'mrlab-|millrace-lab' /proc/self/mountinfo || true
	find /run/millrace-lab /sys/fs/cgroup -maxdepth 3 \( -path '/run/*' -o -name 'mrlab-*' \) 2>/dev/null || true
	ip -o link show type bridge | grep -E ' (fabric|outside)' || true
}

for _ in $(seq "$(nproc)"); do
	(while :; do :; done) &
	busy+=($!)
done

git clone --quiet "file://$PWD" "$clone"
passed=0
for run in $(seq "$count"); do
	start=$SECONDS
	if flock "$lock" make --no-print-directory -C "$clone" demo >"$logs/$run.log" 2>&1 && [ -z "$(left)" ]; then
		passed=$((passed + 1))
		echo "run $run of $count: passed, $((SECONDS - start)) s with waiting for the lock, $(tail -n 1 "$logs/$run.log")"
	else
		echo "run $run of $count: FAILED, see $logs/$run.log"
		tail -n 5 "$logs/$run.log"
		left
	fi
done
echo "$passed of $count demos passed"

beside() {
	bin/lab up && ip netns add "$other" && bin/lab down
}
exec 9<"$lock"
flock 9
(cd "$clone" && beside) >"$logs/beside.log" 2>&1 || { echo "beside ip netns add: FAILED, see $logs/beside.log"; exit 1; }
remains=$(left)
flock -u 9
if [ -n "$remains" ]; then
	echo "beside ip netns add: the lab left $remains"
	exit 1
fi
echo "beside ip netns add: nothing is left"
[ "$passed" -eq "$count" ]
