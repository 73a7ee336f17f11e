// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, the unit of /proc/stat, on all current architectures.
const ticksPerSecond = 100

// busyTime returns the CPU time of all CPUs in the first line of /proc/stat; see proc_stat(5).
func busyTime(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	// user nice system idle iowait irq softirq
	const idle, iowait, counted = 4, 5, 7
	if len(fields) <= counted || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	busy := time.Duration(0)
	for i := 1; i <= counted; i++ {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != idle && i != iowait {
			busy += time.Duration(ticks) * time.Second / ticksPerSecond
		}
	}
	return busy, nil
}

func busyShare(ctx context.Context, watched time.Duration) (float64, error) {
	var times [2]time.Duration
	for i := range times {
		content, err := os.ReadFile("/proc/stat")
		if err != nil {
			return 0, err
		}
		if times[i], err = busyTime(string(content)); err != nil {
			return 0, err
		}
		if i > 0 {
			break
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(watched):
		}
	}
	return (times[1] - times[0]).Seconds() / watched.Seconds() / float64(runtime.NumCPU()), nil
}

// errNoSoftirqThreads is returned if kernel threads are hidden, as in a container.
var errNoSoftirqThreads = errors.New("the kernel's threads ksoftirqd are not to be seen in /proc: run this in the machine's own PID namespace")

// softirqThreads returns the /proc directories of the ksoftirqd threads, one per CPU.
func softirqThreads(proc string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm"))
	if err != nil {
		return nil, err
	}
	var directories []string
	for _, name := range names {
		if comm, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(comm), "ksoftirqd/") {
			directories = append(directories, filepath.Dir(name))
		}
	}
	if len(directories) == 0 {
		return nil, errNoSoftirqThreads
	}
	return directories, nil
}

// spent returns the CPU time of threads. The first number of schedstat is in nanoseconds
// (Documentation/scheduler/sched-stats).
func spent(directories []string) (time.Duration, error) {
	all := time.Duration(0)
	for _, directory := range directories {
		content, err := os.ReadFile(filepath.Join(directory, "schedstat"))
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(content), " ")
		nanoseconds, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s/schedstat: %w", directory, err)
		}
		all += time.Duration(nanoseconds)
	}
	return all, nil
}
