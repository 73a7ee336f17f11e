// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// look is the machine's state that a lab might leave changed.
type look struct {
	// things are sorted lines.
	things  []string
	sysctls map[string]string
}

// lookAtMachine reads mounts, cgroups, namespaces, links, sysctls and default directories of the lab's
// programs.
func lookAtMachine(t *testing.T) look {
	t.Helper()
	found := append(mounts(t), labCgroups(t)...)
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		found = append(found, "link "+link.Name)
	}
	for _, dir := range []string{
		"/run", "/run/containerd", "/run/frr", "/sys/fs/bpf", "/var/lib", "/var/lib/kubelet", "/var/lib/cni",
		"/var/log", "/etc/cni", "/etc/kubernetes", "/opt", "/usr/libexec", "/var/run/kubernetes",
	} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it may be missing
		}
		for _, entry := range entries {
			// Other programs change /run.
			if dir != "/run" || strings.Contains(entry.Name(), "millrace") {
				found = append(found, "file "+filepath.Join(dir, entry.Name()))
			}
		}
	}
	slices.Sort(found)
	return look{things: found, sysctls: sysctls(t)}
}

func (l look) compare(t *testing.T, after look) {
	t.Helper()
	for _, line := range l.things {
		if _, kept := slices.BinarySearch(after.things, line); !kept {
			t.Errorf("removed: %s", line)
		}
	}
	for _, line := range after.things {
		if _, known := slices.BinarySearch(l.things, line); !known {
			t.Errorf("added: %s", line)
		}
	}
	l.compareSysctls(t, after)
}

// compareSysctls fails for changed settings. New ones are from loaded kernel modules.
func (l look) compareSysctls(t *testing.T, after look) {
	t.Helper()
	for name, value := range l.sysctls {
		if after.sysctls[name] != value {
			t.Errorf("sysctl %s = %q, previously %q", name, after.sysctls[name], value)
		}
	}
}

// mounts excludes namespaces of other programs.
func mounts(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if fields[4] == "/run/netns" || strings.HasPrefix(fields[4], "/run/netns/") {
			continue
		}
		found = append(found, "mount "+strings.Join(fields[3:6], " "))
	}
	return found
}

func labCgroups(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && (strings.HasPrefix(entry.Name(), "mrlab-") || strings.Contains(entry.Name(), "kubepods")) {
			found = append(found, "cgroup "+path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// volatile are settings that change by themselves.
var volatile = []string{
	"/proc/sys/fs/dentry-state", "/proc/sys/fs/file-nr", "/proc/sys/fs/inode-nr", "/proc/sys/fs/inode-state",
	"/proc/sys/fs/aio-nr", "/proc/sys/fs/quota", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/random",
	"/proc/sys/kernel/pty/nr", "/proc/sys/net/netfilter/nf_conntrack_count", "/proc/sys/kernel/perf_event_max_sample_rate",
	"/proc/sys/kernel/perf_cpu_time_max_percent", "/proc/sys/net/core/netdev_rss_key",
}

func sysctls(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir("/proc/sys", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil
		}
		for _, name := range volatile {
			if strings.HasPrefix(path, name) {
				return nil
			}
		}
		if content, err := os.ReadFile(path); err == nil {
			found[path] = strings.TrimSpace(string(content))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

type process struct {
	pid     int
	start   string
	command string
}

// alive detects reused PIDs by the start time.
func (p process) alive() bool {
	stat := statOf(p.pid)
	return len(stat) > 0 && stat[19] == p.start && stat[0] != "Z"
}

// statOf returns the fields of /proc/PID/stat from the third, the state.
func statOf(pid int) []string {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
}

// strays fails for processes that name the lab's program or directory. Others end with the first process of
// their PID namespace, which does.
func (t *tester) strays() {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		command, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err == nil && (strings.Contains(string(command), t.program) || strings.Contains(string(command), t.state)) {
			t.Errorf("process %s is still running: %s", entry.Name(), strings.ReplaceAll(string(command), "\x00", " "))
		}
	}
}

func processesOf(t *testing.T, lab *tester) []process {
	t.Helper()
	var found []process
	for line := range strings.Lines(lab.run("hosts")) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[2] == "running" {
			pid, err := strconv.Atoi(fields[3])
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, descendants(t, pid)...)
		}
	}
	return found
}

func (t *tester) pid(host string) int {
	t.Helper()
	var pid int
	fields := strings.Fields(lineOf(t.run("hosts"), host))
	if len(fields) > 3 {
		pid, _ = strconv.Atoi(fields[3])
	}
	if pid == 0 {
		t.Fatalf("host %s is not running: %v", host, fields)
	}
	return pid
}

func lineOf(table, host string) string {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, host+" ") {
			return line
		}
	}
	return ""
}

// descendants returns a process and its descendants, including orphans, which stay in a PID namespace.
func descendants(t *testing.T, root int) []process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if stat := statOf(pid); err == nil && len(stat) > 19 {
			parent, _ := strconv.Atoi(stat[1])
			children[parent] = append(children[parent], pid)
		}
	}
	var found []process
	pending := []int{root}
	for len(pending) > 0 {
		pid := pending[0]
		pending = append(pending[1:], children[pid]...)
		if stat := statOf(pid); len(stat) > 19 {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			found = append(found, process{pid, stat[19], strings.ReplaceAll(string(command), "\x00", " ")})
		}
	}
	return found
}
