// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/blackhole"
)

// otherVIP is created while the agent is unreachable.
const otherVIP = "203.0.113.11"

func (w *world) overLine() *blackhole.Proxy {
	w.t.Helper()
	text, err := os.ReadFile(w.kubeconfig)
	if err != nil {
		w.t.Fatal(err)
	}
	server := regexp.MustCompile(`server: https://(.*)`).FindSubmatch(text)
	line := blackhole.New(w.t, string(server[1]))
	w.kubeconfig = filepath.Join(w.t.TempDir(), "kubeconfig")
	text = regexp.MustCompile(`server: .*`).ReplaceAll(text, []byte("server: https://"+line.Address))
	if err := os.WriteFile(w.kubeconfig, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return line
}

func (a *agent) stop() (resume func()) {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		a.t.Fatal(err)
	}
	return func() {
		a.t.Helper()
		if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			a.t.Fatal(err)
		}
	}
}

func (w *world) replaceVIP() {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: vip}}); err != nil {
		w.t.Fatal(err)
	}
	objects := cluster()
	addService(objects, 11, false, 2, 1)
	objects.Services[0].UID = ""
	w.create(objects.Services[0])
	w.create(objects.EndpointSlices[0])
	w.create(objects.VIPs[0])
}

// hasOnly waits until the router has otherVIP, and checks that it had no route to the removed VIP meanwhile.
func (w *world) hasOnly(limit, watched time.Duration) {
	w.t.Helper()
	began := time.Now()
	look := func() bool {
		routes := w.KernelRoutes()
		if routes[vip] != "" {
			w.t.Fatalf("%s after the agent was resumed, the router has a route to a removed VIP", time.Since(began))
		}
		return routes[otherVIP] == nodeAddress
	}
	w.Await(limit, "the new VIP announced", look)
	w.t.Logf("the new VIP was announced after %s", time.Since(began))
	for time.Since(began) < watched {
		if !look() {
			w.t.Fatalf("the new VIP was withdrawn after %s", time.Since(began))
		}
	}
}

func beginStopped(t *testing.T) (*world, *agent, *blackhole.Proxy) {
	t.Helper()
	w := newWorld(t)
	w.install()
	w.populate()
	line := w.overLine()
	a := w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	return w, a, line
}

// An agent stopped for less than the hold time keeps its session and applies changes immediately. One
// stopped for longer loses the session, and then announces no VIP that was removed meanwhile, although its
// API server connection was also lost silently.
func TestStoppedAgent(t *testing.T) {
	w, a, line := beginStopped(t)
	established := func() *metav1.Time {
		sessions := w.report().Status.Sessions
		if len(sessions) != 1 || sessions[0].State != millracev1beta1.SessionEstablished {
			return nil
		}
		return sessions[0].Since
	}
	w.Await(10*time.Second, "the LBNodeReport with the session", func() bool { return established() != nil })
	since := established()
	for range 3 {
		resume := a.stop()
		// For nine seconds the router receives no message, and the agent's own timer must not count them.
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
			if !w.announced() {
				t.Fatal("the route was withdrawn although the agent was stopped for less than the hold time")
			}
		}
		resume()
		w.keepsRoute(4 * time.Second)
	}
	if now := established(); !since.Equal(now) {
		t.Errorf("the session of %s was re-established: %s", since, now)
	}

	resume := a.stop()
	w.Await(20*time.Second, "the route removed after the hold time", func() bool { return !w.announced() })
	if line.Drop() == 0 {
		t.Fatal("the agent has no connection to the API server")
	}
	w.replaceVIP()
	resume()
	w.hasOnly(10*time.Second, 40*time.Second)
}

// A node that was disconnected from router and API server afterwards announces no VIP that was removed
// meanwhile.
func TestCutOffFromAll(t *testing.T) {
	w, _, line := beginStopped(t)
	run(t, "ip -n "+routerSpace+" link set eth0 down")
	cut := time.Now()
	line.Drop()
	w.replaceVIP()
	w.Await(30*time.Second, "the session lost", func() bool { return time.Since(cut) > 12*time.Second })
	run(t, "ip -n "+routerSpace+" link set eth0 up")
	w.hasOnly(15*time.Second, 40*time.Second)
}

// An unresponsive API server causes no withdrawal: a lost session returns with the previous objects, then
// with the current ones.
func TestSessionWithoutAPIServer(t *testing.T) {
	w, a, line := beginStopped(t)
	line.Reject(true)
	resume := a.stop()
	w.Await(20*time.Second, "the route removed after the hold time", func() bool { return !w.announced() })
	w.replaceVIP()
	resume()
	resumed := time.Now()
	w.Await(10*time.Second, "the previous route", w.announced)
	t.Logf("the previous route was announced after %s", time.Since(resumed))
	line.Reject(false)
	w.Await(70*time.Second, "only the new VIP", func() bool {
		routes := w.KernelRoutes()
		return routes[otherVIP] == nodeAddress && routes[vip] == ""
	})
}
