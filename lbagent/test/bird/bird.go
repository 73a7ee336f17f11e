// SPDX-License-Identifier: Apache-2.0

// Package bird runs a real router, BIRD 2, for tests. It needs root, and Debian's package
// bird2.
package bird

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	startTimeout   = 10 * time.Second
	commandTimeout = 10 * time.Second
	pollInterval   = 20 * time.Millisecond
)

// base is the configuration before that of the test: routes go into the kernel, with all
// their next hops. With graceful restart of the kernel protocols they stay there while BIRD
// recovers from a restart.
const base = `router id 198.51.100.1;
protocol device { scan time 1; }
protocol direct { ipv4; ipv6; }
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; merge paths on; graceful restart on; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; merge paths on; graceful restart on; }
`

// Router is BIRD in a network namespace.
type Router struct {
	t         testing.TB
	namespace string
	state     string
	daemon    *exec.Cmd
}

// Start runs a router in a network namespace of ip(8) until the test ends. configuration
// follows what every router of a test has.
func Start(t testing.TB, namespace, configuration string) *Router {
	t.Helper()
	r := &Router{t: t, namespace: namespace}
	var err error
	if r.state, err = os.MkdirTemp("", "millrace-bird-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.stop)
	r.write(configuration)
	r.start()
	return r
}

// start runs the daemon.
func (r *Router) start(options ...string) {
	r.t.Helper()
	// A real router does not share its processors with tests.
	r.daemon = exec.Command("nice", append([]string{"-n", "-20", "ip", "netns", "exec", r.namespace, "bird", "-f",
		"-c", r.file("bird.conf"), "-s", r.file("bird.ctl"), "-P", r.file("bird.pid")}, options...)...)
	r.daemon.Stderr = r.t.Output()
	if err := r.daemon.Start(); err != nil {
		r.t.Fatalf("start bird (Debian package bird2): %v", err)
	}
	r.Await(startTimeout, "bird answers", func() bool {
		_, err := r.command("show status")
		return err == nil
	})
}

// Restart kills BIRD and starts it again, to recover its routes from the neighbors (option -R).
func (r *Router) Restart() {
	r.t.Helper()
	_ = r.daemon.Process.Kill()
	_ = r.daemon.Wait()
	r.start("-R")
}

func (r *Router) file(name string) string { return filepath.Join(r.state, name) }

func (r *Router) write(configuration string) {
	r.t.Helper()
	content := "log \"" + r.file("bird.log") + "\" all;\n" + base + configuration
	if err := os.WriteFile(r.file("bird.conf"), []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// Configure replaces the configuration of Start. BIRD keeps the sessions that it can.
func (r *Router) Configure(configuration string) {
	r.t.Helper()
	r.write(configuration)
	out, err := r.command("configure")
	if err != nil || !strings.Contains(out, "Reconfigur") {
		r.t.Fatalf("birdc configure: %v: %s", err, out)
	}
}

func (r *Router) stop() {
	if r.daemon != nil && r.daemon.Process != nil {
		_ = r.daemon.Process.Signal(syscall.SIGKILL)
		_ = r.daemon.Wait()
	}
	_ = os.RemoveAll(r.state)
}

func (r *Router) command(command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "birdc", "-s", r.file("bird.ctl"), command).CombinedOutput()
	return string(out), err
}

// Show is what birdc says to a command.
func (r *Router) Show(command string) string {
	r.t.Helper()
	out, err := r.command(command)
	if err != nil {
		r.t.Fatalf("birdc %s: %v: %s", command, err, out)
	}
	return out
}

// Await fails the test, with the end of BIRD's log, when a condition is not true within a
// time.
func (r *Router) Await(limit time.Duration, what string, condition func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(r.file("bird.log"))
			lines := bytes.Split(log, []byte("\n"))
			r.t.Fatalf("not within %s: %s\nBIRD's log:\n%s", limit, what, bytes.Join(lines[max(0, len(lines)-30):], []byte("\n")))
		}
		time.Sleep(pollInterval)
	}
}
