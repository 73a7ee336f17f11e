// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

// All threads have real-time priority, because an ordinary thread could wait for a CPU while it holds a lock
// of Go's runtime that the sending thread needs.
func TestAllThreadsHavePriority(t *testing.T) {
	l := newLab(t)
	p := l.start(l.NodeSpace, "node")
	p.Set(control.Want{Peers: peers()})
	// The first report follows the change of priority.
	await(t, upWithin, "the sessions are reported", func() (bool, any) {
		report, _ := p.Report()
		return len(report.Sessions) == len(peers()), report
	})
	report, _ := p.Report()
	want, nice := uint32(unix.SCHED_FIFO), int32(0)
	if report.Problem != "" {
		t.Logf("this kernel rejects SCHED_FIFO here: %s", report.Problem)
		want, nice = unix.SCHED_NORMAL, -20
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) < 2 {
		t.Errorf("%d threads, want more", len(threads))
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		got, err := unix.SchedGetAttr(id, 0)
		if err != nil {
			t.Fatalf("thread %d: %v", id, err)
		}
		if got.Policy != want || got.Nice != nice {
			t.Errorf("thread %d: policy %d, nice value %d; want %d and %d", id, got.Policy, got.Nice, want, nice)
		}
	}
}
