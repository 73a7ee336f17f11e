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
	// fifoPriority is low among real-time threads, and above all others.
	fifoPriority = 1
	bestNice     = -20
	// threads has a directory for each thread of this process (proc_pid_task(5)).
	threads = "/proc/self/task"
)

// realtime lets all threads of this process run whenever they have something to do, before all
// ordinary threads of the node (SCHED_FIFO, sched(7)). It needs CAP_SYS_NICE. Threads that the
// runtime makes later inherit it.
//
// The thread that sends is not enough: it waits for locks of Go's runtime after each system call,
// and a thread that holds one must not wait for a processor. The others have next to nothing to do.
func realtime() error {
	known := map[int]error{}
	// Until a pass finds no thread that one without the priority has made meanwhile.
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

// prioritize gives a thread of this process SCHED_FIFO, or else the best nice value. An error says
// why it is not SCHED_FIFO.
func prioritize(thread int) error {
	attributes := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: fifoPriority}
	err := unix.SchedSetAttr(thread, &attributes, 0)
	// It may have ended.
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	// Kernels with CONFIG_RT_GROUP_SCHED allow it only in cgroups that have real-time
	// bandwidth, and those of pods have none. The best nice value is the next best.
	err = fmt.Errorf("real-time scheduling (SCHED_FIFO) is refused: %w", err)
	if niceErr := unix.Setpriority(unix.PRIO_PROCESS, thread, bestNice); niceErr != nil && !errors.Is(niceErr, unix.ESRCH) {
		err = errors.Join(err, fmt.Errorf("nice %d is refused: %w", bestNice, niceErr))
	}
	return err
}
