// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	protocol "github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

// The tests of this package run the program itself against FRR's bfdd and BIRD, each in a
// network namespace, with one link between them. They need root.

const (
	ms          = time.Millisecond
	upWithin    = 10 * time.Second
	poll        = 5 * ms
	routerName4 = "router4"
	routerName6 = "router6"
	multihop4   = "multihop4"
	multihop6   = "multihop6"
)

var (
	routerIPv4 = netip.MustParseAddr("198.51.100.1")
	nodeIPv4   = netip.MustParseAddr("198.51.100.2")
	routerIPv6 = netip.MustParseAddr("2001:db8::1")
	nodeIPv6   = netip.MustParseAddr("2001:db8::2")
	standard   = protocol.Parameters{TransmitInterval: 100 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3}
	labs       atomic.Int32
)

// lab is a router's namespace and a node's, with a link.
type lab struct {
	t            *testing.T
	router, node string
	dir          string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: it makes network namespaces and runs routers in them")
	}
	id := fmt.Sprintf("%d-%d", os.Getpid(), labs.Add(1))
	l := &lab{t: t, router: "mrbfd-r-" + id, node: "mrbfd-n-" + id, dir: t.TempDir()}
	t.Cleanup(func() {
		for _, namespace := range []string{l.router, l.node} {
			_ = exec.Command("ip", "netns", "delete", namespace).Run()
		}
	})
	for _, namespace := range []string{l.router, l.node} {
		l.run("ip", "netns", "add", namespace)
		l.run("ip", "-n", namespace, "link", "set", "lo", "up")
	}
	l.run("ip", "link", "add", "eth0", "netns", l.node, "type", "veth", "peer", "name", "eth0", "netns", l.router)
	l.address(l.router, routerIPv4, routerIPv6)
	l.address(l.node, nodeIPv4, nodeIPv6)
	return l
}

func (l *lab) address(namespace string, v4, v6 netip.Addr) {
	l.t.Helper()
	l.run("ip", "-n", namespace, "address", "add", v4.String()+"/24", "dev", "eth0")
	l.run("ip", "-n", namespace, "address", "add", v6.String()+"/64", "dev", "eth0", "nodad")
	l.run("ip", "-n", namespace, "link", "set", "eth0", "up")
}

func (l *lab) run(command ...string) {
	l.t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

// program is cmd/lbbfd, built once.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(os.TempDir(), fmt.Sprintf("millrace-lbbfd-test-%d", os.Getpid()))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	build := exec.Command("go", "build", "-o", path, "../../cmd/lbbfd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build lbbfd: %v: %s", err, out)
	}
	return path
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.Remove(filepath.Join(os.TempDir(), fmt.Sprintf("millrace-lbbfd-test-%d", os.Getpid())))
	os.Exit(code)
}

// process is the program in a namespace of the lab, with an agent's end of its socket.
type process struct {
	*control.Client
	t   *testing.T
	cmd *exec.Cmd
}

// start runs the program in a namespace; name tells processes of one lab apart.
func (l *lab) start(namespace, name string, arguments ...string) *process {
	l.t.Helper()
	socket := filepath.Join(l.dir, name+".sock")
	cmd := exec.Command("ip", append([]string{"netns", "exec", namespace, program(l.t),
		"--socket", socket, "--state", filepath.Join(l.dir, name+".json")}, arguments...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	p := &process{Client: control.NewClient(socket), t: l.t, cmd: cmd}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx)
	}()
	l.t.Cleanup(func() {
		cancel()
		<-done
		p.end(syscall.SIGKILL)
	})
	return p
}

func (p *process) signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
}

// end ends the process, if it runs, and waits for its end.
func (p *process) end(signal syscall.Signal) {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Signal(signal)
		_ = p.cmd.Wait()
	}
}

func (p *process) session(name string) control.Session {
	report, _ := p.Report()
	for _, session := range report.Sessions {
		if session.Peer == name {
			return session
		}
	}
	return control.Session{}
}

func (p *process) awaitState(name string, state protocol.State) control.Session {
	p.t.Helper()
	await(p.t, upWithin, fmt.Sprintf("%s is %s", name, state), func() (bool, any) {
		session := p.session(name)
		return session.Peer != "" && session.State == state, session
	})
	return p.session(name)
}

// await fails the test when a condition is not true within a time; the condition returns
// what is shown then. It returns how long it took.
func await(t *testing.T, limit time.Duration, what string, condition func() (bool, any)) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		done, shown := condition()
		if done {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			text, _ := json.Marshal(shown)
			t.Fatalf("not within %s: %s; it is %s", limit, what, text)
		}
		time.Sleep(poll)
	}
}

// peers are a session of each kind with the router.
func peers() []control.Peer {
	return []control.Peer{
		{Name: routerName4, Address: routerIPv4, Parameters: standard},
		{Name: routerName6, Address: routerIPv6, Parameters: standard},
		{Name: multihop4, Address: routerIPv4, Multihop: true, Parameters: standard},
		{Name: multihop6, Address: routerIPv6, Multihop: true, Parameters: standard},
	}
}
