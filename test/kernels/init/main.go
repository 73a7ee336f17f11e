// SPDX-License-Identifier: Apache-2.0

// Command init is the initial process of a test machine. It prepares the system, runs every test program
// and ends the machine.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/kernels/console"
)

func main() {
	if err := run(); err != nil {
		fmt.Println(err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		fmt.Println("reboot:", err)
	}
}

func run() error {
	if err := prepare(); err != nil {
		return err
	}
	programs, err := testPrograms("/tests")
	if err != nil {
		return err
	}
	arguments, err := os.ReadFile("/arguments")
	if err != nil {
		return fmt.Errorf("read the arguments of the tests: %w", err)
	}
	for _, program := range programs {
		printMark(test(program, strings.Split(string(arguments), "\n")))
	}
	printMark(console.Done)
	return nil
}

func printMark(what string) { fmt.Printf("\n%s%s\n", console.Mark, what) }

func prepare() error {
	for _, m := range []struct{ what, where string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"bpf", "/sys/fs/bpf"},
	} {
		if err := unix.Mount(m.what, m.where, m.what, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.where, err)
		}
	}
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := load(file); err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	if err := exec.Command("/bin/ip", "link", "set", "lo", "up").Run(); err != nil {
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	return errors.Join(os.Setenv("PATH", "/bin"), os.Setenv("HOME", "/tmp"), os.Setenv("MILLRACE_TEST_MODULES", "all"))
}

func load(file string) error {
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	defer content.Close()
	return unix.FinitModule(int(content.Fd()), "", 0)
}

func testPrograms(directory string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(directory, func(name string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the test programs: %w", err)
	}
	return all, nil
}

func test(program string, arguments []string) string {
	_, pkg, _ := strings.Cut(strings.TrimPrefix(program, "/tests/"), "/")
	start := time.Now()
	cmd := exec.Command(program, arguments...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join("/source", pkg), os.Stdout, os.Stdout
	err := cmd.Run()
	took := time.Since(start).Round(time.Second)
	if err != nil {
		return fmt.Sprintf("%s%s %s: %v", console.Failed, pkg, took, err)
	}
	return fmt.Sprintf("%s%s %s", console.Passed, pkg, took)
}
