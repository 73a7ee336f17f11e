// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/lab/internal/netns"
)

// Command is the hidden command of a machine's first process: `lab machine-init DIR STAGE`.
const Command = "machine-init"

// Stages of a machine's first process. It executes itself between them, so that all threads are in the new
// cgroup namespace.
const (
	stageEnter = "enter"
	stageBoot  = "boot"
)

// statusFD reports the boot to the starter: empty for success, otherwise the error.
const statusFD = 3

// ErrNotRunning means that a machine has no first process.
var ErrNotRunning = errors.New("machine is not running")

// Start boots a machine in its existing network namespace and returns when its file systems are mounted and
// its services are starting.
func Start(spec Spec) error {
	if err := save(spec); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start machine %s: find own program: %w", spec.Name, err)
	}
	log, err := os.OpenFile(filepath.Join(LogDir(spec.Dir), "machine.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start machine %s: %w", spec.Name, err)
	}
	defer log.Close()
	status, statusWriter, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start machine %s: %w", spec.Name, err)
	}
	defer status.Close()

	command := exec.Command(self, Command, spec.Dir, stageEnter)
	command.Stdout, command.Stderr = log, log
	command.ExtraFiles = []*os.File{statusWriter}
	command.Dir = "/"
	command.SysProcAttr = &unix.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID,
	}
	err = netns.Do(spec.Namespace, command.Start)
	statusWriter.Close()
	if err != nil {
		return fmt.Errorf("start machine %s: %w", spec.Name, err)
	}
	pid := command.Process.Pid
	if err := os.WriteFile(filepath.Join(spec.Dir, pidFile), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("start machine %s: %w", spec.Name, err)
	}
	words, err := io.ReadAll(status)
	if err != nil {
		return fmt.Errorf("start machine %s: %w", spec.Name, err)
	}
	switch answer := strings.TrimSpace(string(words)); answer {
	case bootedAnswer:
		return command.Process.Release()
	case "":
		return fmt.Errorf("start machine %s: its first process ended, see %s", spec.Name, log.Name())
	default:
		return fmt.Errorf("start machine %s: %s", spec.Name, answer)
	}
}

// Pid returns the PID of a machine's first process, or ErrNotRunning.
func Pid(spec Spec) (int, error) {
	content, err := os.ReadFile(filepath.Join(spec.Dir, pidFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("%s: %w", spec.Name, ErrNotRunning)
	}
	if err != nil {
		return 0, fmt.Errorf("find machine %s: %w", spec.Name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("find machine %s: %w", spec.Name, err)
	}
	// The namespace detects a reused PID.
	want, err := netns.Inode(netns.Path(spec.Namespace))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", spec.Name, ErrNotRunning)
	}
	if got, err := netns.Inode(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil || got != want || ended(pid) {
		return 0, fmt.Errorf("%s: %w", spec.Name, ErrNotRunning)
	}
	return pid, nil
}
