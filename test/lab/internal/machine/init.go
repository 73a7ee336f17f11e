// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/lab/internal/cgroup"
)

const bootedAnswer = "booted"

var errNotInit = errors.New("only the lab itself starts machines: use `lab up` or `lab node start`")

// Init is the first process of the machine in dir. It returns only on failure.
func Init(dir, stage string) error {
	if os.Getpid() != 1 {
		return errNotInit
	}
	spec, err := Load(dir)
	if err == nil {
		err = runStage(spec, stage)
	}
	status := os.NewFile(statusFD, "status")
	fmt.Fprintln(status, err)
	return err
}

func runStage(spec Spec, stage string) error {
	switch stage {
	case stageEnter:
		return enter(spec)
	case stageBoot:
		return boot(spec)
	}
	return fmt.Errorf("unknown stage %q of a machine's start", stage)
}

// enter moves the process to the machine's cgroups and continues as stage boot.
func enter(spec Spec) error {
	// Later mounts must not propagate outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	runtime.LockOSThread()
	if spec.Cgroup != "" {
		if err := cgroup.Join(spec.Cgroup); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return fmt.Errorf("enter cgroup namespace: %w", err)
		}
	}
	err := unix.Exec("/proc/self/exe", []string{os.Args[0], Command, spec.Dir, stageBoot}, os.Environ())
	return fmt.Errorf("go on as first process: %w", err)
}

func boot(spec Spec) error {
	unix.CloseOnExec(statusFD)
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := mountAll(spec); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	supervisor := newSupervisor(spec, log)
	supervisor.start()
	status := os.NewFile(statusFD, "status")
	fmt.Fprintln(status, bootedAnswer)
	status.Close()
	supervisor.reap()
	return nil
}

func mountAll(spec Spec) error {
	mounts := []struct{ kind, target, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"tmpfs", "/run", "mode=755"},
	}
	if spec.BPF {
		mounts = append(mounts, struct{ kind, target, options string }{"bpf", "/sys/fs/bpf", "mode=700"})
	}
	for _, mount := range mounts {
		if err := unix.Mount(mount.kind, mount.target, mount.kind, 0, mount.options); err != nil {
			return fmt.Errorf("mount %s at %s: %w", mount.kind, mount.target, err)
		}
	}
	if spec.Cgroup != "" {
		if err := cgroup.MountView(); err != nil {
			return err
		}
	}
	for _, directory := range spec.RunFolders {
		if err := makeFolder(directory.Path, directory.Owner); err != nil {
			return err
		}
	}
	for _, bind := range spec.Binds {
		if err := bindFolder(spec.Dir, bind); err != nil {
			return err
		}
	}
	if err := shadowSysctls(spec); err != nil {
		return err
	}
	// Bidirectional mount propagation of containers needs a shared tree.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

func bindFolder(dir string, bind Bind) error {
	source := filepath.Join(dir, bind.Source)
	if err := makeFolder(source, bind.Owner); err != nil {
		return err
	}
	if err := unix.Mount(source, bind.Target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s over %s: %w", source, bind.Target, err)
	}
	return nil
}

func shadowSysctls(spec Spec) error {
	dir := filepath.Join(spec.Dir, "sysctl")
	if err := makeFolder(dir, ""); err != nil {
		return err
	}
	for name, value := range spec.ShadowSysctls {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("shadow sysctl %s: %w", name, err)
		}
		if err := unix.Mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("shadow sysctl %s: %w", name, err)
		}
	}
	return nil
}

func makeFolder(path, owner string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	if owner == "" {
		return nil
	}
	account, err := user.Lookup(owner)
	if err != nil {
		return fmt.Errorf("change the owner of directory %s to %s: %w", path, owner, err)
	}
	uid, err := strconv.Atoi(account.Uid)
	if err != nil {
		return fmt.Errorf("user %s: %w", owner, err)
	}
	gid, err := strconv.Atoi(account.Gid)
	if err != nil {
		return fmt.Errorf("group of user %s: %w", owner, err)
	}
	return filepath.WalkDir(path, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, uid, gid)
	})
}
