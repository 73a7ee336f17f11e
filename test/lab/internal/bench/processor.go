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

// ticksPerSecond is the unit of /proc/stat, USER_HZ, on all architectures of today.
const ticksPerSecond = 100

// busyTime returns the processor time that a machine has spent so far, on all its
// processors together, by the first line of its /proc/stat; see proc_stat(5).
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

// busyShare is the share of this machine's processors that are busy, watched for a
// while.
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

// errNoSoftirqThreads is told where the kernel's threads are hidden, as in a container.
var errNoSoftirqThreads = errors.New("the kernel's threads ksoftirqd are not to be seen in /proc: run this in the machine's own PID namespace")

// softirqThreads returns the directories in /proc of the threads that do network work which
// the kernel takes out of the context that caused it, one for each processor.
func softirqThreads(proc string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm"))
	if err != nil {
		return nil, err
	}
	var directories []string
	for _, name := range names {
		// A process may have ended since.
		if comm, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(comm), "ksoftirqd/") {
			directories = append(directories, filepath.Dir(name))
		}
	}
	if len(directories) == 0 {
		return nil, errNoSoftirqThreads
	}
	return directories, nil
}

// spent returns the processor time of threads so far, by their directories in /proc.
// The first number of schedstat is in nanoseconds (Documentation/scheduler/sched-stats).
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
