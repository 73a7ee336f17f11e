// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// fifoPriority is the lowest real-time priority, above all ordinary threads.
	fifoPriority = 1
	bestNice     = -20
	threads      = "/proc/self/task"
)

// realtime gives all threads of this process real-time priority (SCHED_FIFO, sched(7)), which requires
// CAP_SYS_NICE. New threads inherit it.
//
// Raising the sending thread alone does not suffice, because after each system call it may wait for a lock of
// Go's runtime whose holder waits for a CPU. The other threads are mostly idle.
func realtime() error {
	known := map[int]error{}
	// Repeated until no thread was created by one without the priority.
	for found := true; found; {
		entries, err := os.ReadDir(threads)
		if err != nil {
			return fmt.Errorf("packets may be late on a busy node: list the threads of this process: %w", err)
		}
		found = false
		for _, entry := range entries {
			id, err := strconv.Atoi(entry.Name())
			if err != nil {
				continue
			}
			if _, ok := known[id]; !ok {
				known[id], found = prioritize(id), true
			}
		}
	}
	for _, err := range known {
		if err != nil {
			return fmt.Errorf("packets may be late on a busy node: %w", err)
		}
	}
	return nil
}

// prioritize sets SCHED_FIFO for a thread, or else the best nice value and an error.
func prioritize(thread int) error {
	attributes := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: fifoPriority}
	err := unix.SchedSetAttr(thread, &attributes, 0)
	// The thread may have terminated.
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	// Kernels with CONFIG_RT_GROUP_SCHED require real-time bandwidth of the cgroup, which pods lack.
	err = fmt.Errorf("set real-time scheduling (SCHED_FIFO): %w", err)
	if niceErr := unix.Setpriority(unix.PRIO_PROCESS, thread, bestNice); niceErr != nil && !errors.Is(niceErr, unix.ESRCH) {
		err = errors.Join(err, fmt.Errorf("set nice %d: %w", bestNice, niceErr))
	}
	return err
}
