# shellcheck shell=sh
# Sets SCHED_FIFO for the threads of a program ($1) with the lowest nice value. Prints "given" or
# "refused".
pid=$(pgrep -x -o "$1") || { echo "no process $1" >&2; exit 1; }
# cgroup v1 limits real-time bandwidth per cgroup: allocate it from the root down. FRR's bfdd uses
# half of it.
path=$(sed -n 's/^[0-9]*:[a-z,]*\bcpu\b[a-z,]*://p' "/proc/$pid/cgroup")
group=/sys/fs/cgroup/cpu
for part in . $(echo "$path" | tr / ' '); do
	group=$group/$part
	file=$group/cpu.rt_runtime_us
	if [ -e "$file" ] && [ "$(cat "$file")" = 0 ]; then
		echo 100000 2>/dev/null >"$file" || { echo refused; exit 0; }
	fi
done
threads=$(ps -L -o tid=,ni=,cls= -p "$pid" | awk '$2 == -20 || $3 == "FF" { print $1 }')
for thread in ${threads:?none with the nice value -20}; do
	chrt --fifo --pid 1 "$thread" 2>/dev/null || { echo refused; exit 0; }
done
echo given
