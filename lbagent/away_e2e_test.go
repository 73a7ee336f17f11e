// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
)

// routerWaits is the router's restart time, longer than the start of an agent under load.
const routerWaits = 40 * time.Second

// Agents restarted during an API server outage keep their routes beyond the router's restart time. An agent
// that starts after the outage uses current objects. With a damaged checkpoint it waits for the API server.
func TestAPIServerAway(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	w.stateDir = mountState(t)
	w.limitRestart()
	running := w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	file := filepath.Join(w.stateDir, "objects")
	w.Await(10*time.Second, "a checkpoint", func() bool { return exists(file) })

	here := w.kubeconfig
	w.kubeconfig = w.awayKubeconfig()
	for _, sent := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		w.restart(running, sent)
		running = w.start()
		w.awaitBack()
	}
	w.keepsRoute(routerWaits + time.Second)

	w.kubeconfig = here
	w.restart(running, syscall.SIGKILL)
	running = w.start()
	w.awaitBack()
	w.removeVIP()
	w.Await(10*time.Second, "no route of a removed VIP", func() bool { return !w.announced() })

	if err := running.end(syscall.SIGTERM); err != nil {
		t.Errorf("the agent exited: %v", err)
	}
	if err := os.Truncate(file, 100); err != nil {
		t.Fatal(err)
	}
	w.kubeconfig = w.awayKubeconfig()
	w.start()
	end := time.Now().Add(checkpoint.StartTimeout + 2*time.Second)
	w.Await(checkpoint.StartTimeout+10*time.Second, "an agent that waits", func() bool {
		if ready() {
			t.Fatal("the agent is ready without objects")
		}
		return time.Now().After(end)
	})
}

func mountState(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", 0, "mode=0700"); err != nil {
		t.Fatalf("mount a tmpfs (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Errorf("unmount %s: %v", directory, err)
		}
	})
	return directory
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (w *world) limitRestart() {
	w.t.Helper()
	peer := &millracev1beta1.LBPeer{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "router"}, peer); err != nil {
		w.t.Fatal(err)
	}
	peer.Spec.GracefulRestart = &millracev1beta1.GracefulRestart{RestartTime: &metav1.Duration{Duration: routerWaits}}
	if err := w.client.Update(w.t.Context(), peer); err != nil {
		w.t.Fatal(err)
	}
}

// awayKubeconfig returns a kubeconfig with an unreachable API server.
func (w *world) awayKubeconfig() string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(w.kubeconfig), agentUser+".kubeconfig"))
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.t.TempDir(), "kubeconfig")
	away := regexp.MustCompile(`server: .*`).ReplaceAll(text, []byte("server: https://127.0.0.1:1"))
	if err := os.WriteFile(file, away, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return file
}

func (w *world) keepsRoute(limit time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if !w.announced() {
			w.t.Fatal("the route was withdrawn")
		}
	}
}
