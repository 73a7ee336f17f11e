// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/lab/internal/netns"
)

const killTimeout = 20 * time.Second

// KillAll kills every process in the network namespaces, including machines' first processes, and returns
// when they have ended.
func KillAll(namespaces []string) error {
	inodes, err := inodesOf(namespaces)
	if err != nil {
		return fmt.Errorf("kill what runs: %w", err)
	}
	// Processes may start others between listing and killing.
	for {
		pids, err := members(inodes)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := kill(pid); err != nil {
				return err
			}
		}
	}
}

// Alive reports whether a process runs in one of the network namespaces.
func Alive(namespaces []string) (bool, error) {
	inodes, err := inodesOf(namespaces)
	if err != nil {
		return false, err
	}
	pids, err := members(inodes)
	return len(pids) > 0, err
}

func inodesOf(namespaces []string) (map[uint64]bool, error) {
	inodes := map[uint64]bool{}
	for _, name := range namespaces {
		inode, err := netns.Inode(netns.Path(name))
		if err != nil {
			return nil, fmt.Errorf("look into the network namespace %s: %w", name, err)
		}
		inodes[inode] = true
	}
	return inodes, nil
}

// members returns the processes in the namespaces, except this one.
func members(inodes map[uint64]bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		inode, err := netns.Inode(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil && inodes[inode] && !ended(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// kill ends a process and waits for the release of its resources. A pidfd avoids killing a process that
// reuses the PID.
func kill(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	deadline := time.Now().Add(killTimeout)
	for {
		wait := time.Until(deadline)
		if wait <= 0 {
			return fmt.Errorf("process %d has not ended %s after it was killed", pid, killTimeout)
		}
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(wait.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("await end of process %d: %w", pid, err)
		}
		if ready > 0 {
			return nil
		}
	}
}

// ended reports whether a process is gone or a zombie.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// The state follows the last closing parenthesis (proc_pid_stat(5)).
	end := bytes.LastIndexByte(stat, ')')
	return end < 0 || end+2 >= len(stat) || stat[end+2] == 'Z' || stat[end+2] == 'X'
}
