// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	protocol "github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/test/link"
)

// The tests run lbbfd against FRR's bfdd and BIRD, each in a network namespace, over one link. They require
// root.

const (
	ms       = time.Millisecond
	upWithin = 10 * time.Second
	// countedWithin is for counters, which unchanged reports send every ten seconds.
	countedWithin = 30 * time.Second
	poll          = 5 * ms
	routerName4   = "router4"
	routerName6   = "router6"
	multihop4     = "multihop4"
	multihop6     = "multihop6"
)

var (
	routerIPv4 = link.RouterIPv4
	nodeIPv4   = link.NodeIPv4
	routerIPv6 = link.RouterIPv6
	nodeIPv6   = link.NodeIPv6
	standard   = protocol.Parameters{TransmitInterval: 100 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3}
)

type lab struct {
	*link.Link
	t   *testing.T
	dir string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	return &lab{Link: link.New(t, "mrbfd"), t: t, dir: t.TempDir()}
}

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

type process struct {
	*control.Client
	t   *testing.T
	cmd *exec.Cmd
}

// start runs lbbfd in a namespace; name distinguishes the processes of a lab.
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

// await waits for a condition, which also returns its current state, and returns the elapsed time.
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
			t.Fatalf("timeout after %s: %s; got %s", limit, what, text)
		}
		time.Sleep(poll)
	}
}

func peers() []control.Peer {
	return []control.Peer{
		{Name: routerName4, Address: routerIPv4, Parameters: standard},
		{Name: routerName6, Address: routerIPv6, Parameters: standard},
		{Name: multihop4, Address: routerIPv4, Multihop: true, Parameters: standard},
		{Name: multihop6, Address: routerIPv6, Multihop: true, Parameters: standard},
	}
}
