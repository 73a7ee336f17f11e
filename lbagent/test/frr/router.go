// SPDX-License-Identifier: Apache-2.0

// Package frr runs a real router, FRR's zebra and bgpd, for tests. It
// needs root, and Debian's package frr.
package frr

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	configuration = `router bgp 64500
 bgp router-id 198.51.100.1
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp graceful-restart stalepath-time 60
`
	startTimeout   = 10 * time.Second
	commandTimeout = 10 * time.Second
	pollInterval   = 20 * time.Millisecond
)

// Router is FRR in a network namespace, of AS64500.
type Router struct {
	t         testing.TB
	namespace string
	state     string
	zebra     *exec.Cmd
	bgpd      *exec.Cmd
}

// ProcessorTime is how long threads of bgpd and zebra have had a processor.
func (r *Router) ProcessorTime() (bgpd, zebra time.Duration) {
	r.t.Helper()
	return r.processorTime(r.bgpd), r.processorTime(r.zebra)
}

// processorTime is the sum of the first fields of schedstat, in ns.
func (r *Router) processorTime(cmd *exec.Cmd) (sum time.Duration) {
	r.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, thread := range threads {
		var ran time.Duration
		text, err := os.ReadFile(thread)
		if err == nil {
			_, err = fmt.Sscan(string(text), &ran)
		}
		if err != nil {
			r.t.Fatalf("read how long a thread ran: %v", err)
		}
		sum += ran
	}
	return sum
}

// Start runs a router in a network namespace of ip(8) until the test ends.
// neighbors is the rest of its "router bgp" configuration.
func Start(t testing.TB, namespace, neighbors string) *Router {
	t.Helper()
	r := &Router{t: t, namespace: namespace}
	owner, err := user.Lookup("frr")
	if err != nil {
		t.Fatalf("this test needs FRR (Debian package frr): %v", err)
	}
	uid, _ := strconv.Atoi(owner.Uid)
	gid, _ := strconv.Atoi(owner.Gid)
	// Not t.TempDir: others than root cannot enter it.
	if r.state, err = os.MkdirTemp("", "millrace-frr-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stop)
	files := map[string]string{
		"zebra.conf": "",
		"bgpd.conf":  "log file " + r.file("bgpd.log") + "\n" + configuration + neighbors,
	}
	for name, content := range files {
		if err := os.WriteFile(r.file(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"", "zebra.conf", "bgpd.conf"} {
		if err := os.Chown(r.file(name), uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	r.zebra = r.daemon("zebra")
	r.startBGP()
	return r
}

func (r *Router) file(name string) string { return filepath.Join(r.state, name) }

func (r *Router) startBGP() {
	r.t.Helper()
	r.bgpd = r.daemon("bgpd")
	r.Await(startTimeout, "bgpd answers", func() bool {
		_, err := r.vtysh("show bgp summary json")
		return err == nil
	})
}

func (r *Router) daemon(name string, arguments ...string) *exec.Cmd {
	r.t.Helper()
	// A real router does not share its processors with tests.
	cmd := exec.Command("nice", append([]string{
		"-n", "-20", "ip", "netns", "exec", r.namespace, "/usr/lib/frr/" + name,
		"-u", "frr", "-g", "frr", "-f", r.file(name + ".conf"), "-i", r.file(name + ".pid"),
		"-z", r.file("zserv.api"), "--vty_socket", r.state, "-P", "0",
	}, arguments...)...)
	if err := cmd.Start(); err != nil {
		r.t.Fatalf("start %s: %v", name, err)
	}
	r.Await(startTimeout, name+" is up", func() bool {
		_, err := os.Stat(r.file(name + ".vty"))
		return err == nil
	})
	return cmd
}

// RestartBGP kills the router's bgpd and starts it again.
func (r *Router) RestartBGP() {
	r.t.Helper()
	end(r.bgpd)
	if err := os.Remove(r.file("bgpd.vty")); err != nil {
		r.t.Fatal(err)
	}
	r.startBGP()
}

func (r *Router) stop() {
	end(r.bgpd)
	end(r.zebra)
	_ = os.RemoveAll(r.state)
}

func end(cmd *exec.Cmd) {
	if cmd != nil {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	}
}

func (r *Router) vtysh(command string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	return exec.CommandContext(ctx, "vtysh", "--vty_socket", r.state, "-c", command).Output()
}

// Show decodes the answer to a command of the router that ends in "json".
func (r *Router) Show(command string, into any) {
	r.t.Helper()
	out, err := r.vtysh(command)
	if err != nil {
		r.t.Fatalf("vtysh -c %q: %v", command, err)
	}
	if err := json.Unmarshal(out, into); err != nil {
		r.t.Fatalf("vtysh -c %q: %v: %s", command, err, out)
	}
}

// Clear ends the sessions with a neighbor, or with all (*).
func (r *Router) Clear(neighbor string) {
	r.t.Helper()
	if out, err := r.vtysh("clear bgp " + neighbor); err != nil {
		r.t.Fatalf("clear bgp %s: %v\n%s", neighbor, err, out)
	}
}

// KernelRoutes are the routes from BGP that the router's kernel forwards by:
// next hop by prefix, as ip(8) writes them.
func (r *Router) KernelRoutes() map[string]string {
	r.t.Helper()
	routes := map[string]string{}
	for _, family := range []string{"-4", "-6"} {
		out, err := exec.Command("ip", "-n", r.namespace, family, "route", "show", "proto", "bgp").CombinedOutput()
		if err != nil {
			r.t.Fatalf("list the router's routes: %v: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			// An IPv6 next hop of an IPv4 route is "via inet6".
			fields := strings.Fields(strings.Replace(line, " inet6 ", " ", 1))
			if via := slices.Index(fields, "via"); via > 0 && via+1 < len(fields) {
				routes[fields[0]] = fields[via+1]
			}
		}
	}
	return routes
}

// Await fails the test, with the end of bgpd's log, when a condition is not
// true within a time.
func (r *Router) Await(limit time.Duration, what string, condition func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(r.file("bgpd.log"))
			r.t.Fatalf("not within %s: %s\nbgpd's log:\n%s", limit, what, tail(log, 30))
		}
		time.Sleep(pollInterval)
	}
}

func tail(text []byte, lines int) []byte {
	all := bytes.Split(text, []byte("\n"))
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
