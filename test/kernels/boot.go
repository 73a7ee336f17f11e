// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/millrace-lb/millrace/test/kernels/console"
)

// boot runs the tests on a kernel under qemu, with full emulation, which needs no KVM.
func boot(ctx context.Context, k kernel, directory string, o options) error {
	image, err := k.open(ctx)
	if err != nil {
		return err
	}
	archive, err := newInitramfs(ctx, directory, image, append(o.arguments(), emulated...))
	if err != nil {
		return err
	}
	vmlinuz, initrd := filepath.Join(directory, "vmlinuz"), filepath.Join(directory, "initrd")
	if err := errors.Join(os.WriteFile(vmlinuz, image.vmlinuz, 0o600), os.WriteFile(initrd, archive, 0o600)); err != nil {
		return fmt.Errorf("write kernel %s: %w", k.name, err)
	}
	fmt.Printf("kernel %s (%s):\n", k.name, k.version)
	args := []string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072",
		"-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", vmlinuz, "-initrd", initrd,
		"-append", "console=ttyS0 quiet loglevel=4 oops=panic panic=-1 mitigations=off random.trust_cpu=on",
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(args, cards()...)...)
	// The host side of the cards is in a network namespace that ends with qemu.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start qemu: %w; run hack/prerequisites.sh --kernels", err)
	}
	done, failed := watch(output, o.verbose)
	if err := cmd.Wait(); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("kernel %s: not done after %s; its console is above, and -timeout gives it longer", k.name, o.limit)
		}
		return fmt.Errorf("kernel %s: qemu: %w\n%s", k.name, err, complaints.String())
	}
	switch {
	case !done:
		return fmt.Errorf("kernel %s: the machine ended before its tests did; its console is above", k.name)
	case failed:
		return fmt.Errorf("kernel %s: tests failed", k.name)
	}
	return nil
}

// cards returns two interfaces with two queues each, eth0 and eth1. Only the first driver supports RSS
// configuration.
func cards() (args []string) {
	for i, feature := range []string{",rss=on,hash=on", ""} {
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=net%[1]d,ifname=net%[1]d,queues=2,script=no,downscript=no,vhost=off", i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mq=on,vectors=6,romfile=%s", i, feature))
	}
	return args
}

// watch parses the console and prints the log of a failed test or machine.
func watch(output io.Reader, verbose bool) (done, failed bool) {
	var log []string
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		report, ok := strings.CutPrefix(line, console.Mark)
		if !ok {
			log = append(log, line)
			if verbose {
				fmt.Println(line)
			}
			continue
		}
		if report == console.Done {
			done = true
			continue
		}
		if strings.HasPrefix(report, console.Failed) {
			failed = true
			show(log, verbose)
		}
		log = nil
		fmt.Println(" ", report)
	}
	if !done {
		show(log, verbose)
	}
	return done, failed
}

func show(log []string, verbose bool) {
	if verbose {
		return
	}
	for _, line := range log {
		fmt.Println(line)
	}
}
