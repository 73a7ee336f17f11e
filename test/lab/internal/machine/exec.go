// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/millrace-lb/millrace/test/lab/internal/cgroup"
)

const allNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP

// A shell's exit codes for commands that cannot be started.
const (
	exitCannotRun = 126
	exitNotFound  = 127
	exitBySignal  = 128
)

// Exec runs a command on a machine with the caller's stdio and working directory, forwards signals and
// returns its exit code.
func Exec(spec Spec, args []string) (int, error) {
	pid, err := Pid(spec)
	if err != nil {
		return 0, err
	}
	directory, err := os.Getwd()
	if err != nil {
		directory = "/"
	}
	// Programs of a CNI at the machine's cgroup see the sockets of all its processes.
	if spec.Cgroup != "" {
		if err := cgroup.Follow(pid); err != nil {
			return 0, fmt.Errorf("enter %s: %w", spec.Name, err)
		}
	}
	runtime.LockOSThread() // never unlocked: the thread is unusable outside of the machine
	if err := enterNamespaces(pid); err != nil {
		return 0, fmt.Errorf("enter %s: %w", spec.Name, err)
	}
	if info, err := os.Stat(directory); err != nil || !info.IsDir() {
		directory = "/"
	}
	program, err := lookPath(args[0], spec.Path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitNotFound, nil
	}
	// The command must end with this process. SysProcAttr.Pdeathsig does not work, because a parent in
	// another PID namespace counts as dead.
	command := exec.Command("setpriv", append([]string{"--pdeathsig", "TERM", "--", program}, args[1:]...)...)
	command.Dir = directory
	command.Env = append(os.Environ(), "PATH="+spec.Path)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	return run(command)
}

func enterNamespaces(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// A thread that shares its working directory may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(fd, allNamespaces)
}

func run(command *exec.Cmd) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	if err := command.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, os.ErrNotExist) {
			return exitNotFound, nil
		}
		return exitCannotRun, nil
	}
	// The terminal sends these two to the command itself.
	fromKeyboard := term.IsTerminal(int(os.Stdin.Fd()))
	go func() {
		for received := range signals {
			if fromKeyboard && (received == unix.SIGINT || received == unix.SIGQUIT) {
				continue
			}
			_ = command.Process.Signal(received)
		}
	}()
	err := command.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("run %s: %w", command.Args[0], err)
	}
	if status := command.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return exitBySignal + int(status.Signal()), nil
	}
	return command.ProcessState.ExitCode(), nil
}
