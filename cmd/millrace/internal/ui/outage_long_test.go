// SPDX-License-Identifier: Apache-2.0

//go:build long

package ui_test

import (
	"bufio"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/uitest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

func running(t *testing.T, kubeconfig string) (url, token string, end func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "millrace")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../..").CombinedOutput(); err != nil {
		t.Fatalf("build millrace: %v: %s", err, out)
	}
	command := exec.Command(program, "ui", "--kubeconfig", kubeconfig, "--request-timeout", "2s")
	command.Stderr = t.Output()
	stdout, err := command.StdoutPipe()
	controlplane.Must(t, err)
	controlplane.Must(t, command.Start())
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		_ = command.Process.Kill()
		_, _ = io.Copy(io.Discard, stdout)
		_ = command.Wait()
	}
	t.Cleanup(end)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	controlplane.Must(t, err)
	url, token, _ = strings.Cut(strings.TrimSpace(line), "/#token=")
	return url, token, end
}

func contains(selector, text string) string {
	return `(document.querySelector(` + quoted(selector) + `)?.textContent ?? '').includes(` + quoted(text) + `)`
}

// TestBrowserOutage checks that the page reports an API server that hangs or is gone, a silent agent, and a
// stopped millrace ui, keeps its content, and recovers.
func TestBrowserOutage(t *testing.T) {
	server := controlplane.Start(t, "../../../..")
	objects := server.Install(t, server.Admin(), client.Options{})
	objects.MakeNamespaces(t, "millrace-system")
	objects.Make(t, &millracev1beta1.LBNode{
		ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Spec: millracev1beta1.LBNodeSpec{ID: 1, Addresses: []string{"198.18.0.1"}},
	})
	// Nothing runs the pod, so running a command in it fails.
	labels := map[string]string{"app.kubernetes.io/name": "millrace", "app.kubernetes.io/component": "agent"}
	objects.Make(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "millrace-agent-1", Namespace: "millrace-system", Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "lbagent", Image: "none"}}},
	})
	kubeconfig, err := server.WriteAdminKubeconfig()
	controlplane.Must(t, err)
	url, token, end := running(t, kubeconfig)
	p := openAt(t, url, token)
	p.broken = true
	p.load("")
	p.until(contains("#panel", "The aggregated API has not been read since "))
	p.until(contains("#panel", "live.millrace.io is not installed"))
	p.selects("node/node1", "#panel .facts")
	p.until(contains("#panel", "Some queries have failed since "))
	p.picture("outage-agent")
	for name, fault := range map[string]struct {
		begin, end func() error
		message    string
	}{
		"hangs":   {server.Pause, server.Resume, "no answer within 2s"},
		"is gone": {server.Kill, func() error { return server.Restart(t) }, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			controlplane.Must(t, fault.begin())
			p.until(contains("#notices", "The API server has not answered since "))
			p.until(contains("#notices", fault.message))
			p.until(contains("#notices", "The page shows the state at "))
			p.until(contains("#connection", "from "))
			p.until(contains("#nodes", "node1"))
			p.picture("outage-" + strings.ReplaceAll(name, " ", "-"))
			controlplane.Must(t, fault.end())
			p.until(`document.querySelectorAll('#notices > *').length === 0`)
			p.until(contains("#connection", "live"))
		})
	}
	end()
	p.until(contains("#notices", "millrace ui does not answer"))
	p.until(contains("#nodes", "node1"))
	p.picture("outage-ui")
}

// The last answer of the aggregated API is kept, with its time and the silent nodes.
func TestBrowserAggregatedAPI(t *testing.T) {
	state := uitest.Cluster(uitest.Size{Nodes: 6, VIPs: 8, Zones: 2})
	source := uitest.NewSource(state)
	p := open(t, source)
	p.load("")
	with := func(change func(*view.State)) {
		next := *state
		change(&next)
		source.Set(&next)
	}
	seen := time.Now().Add(-time.Minute)
	with(func(next *view.State) {
		next.LiveOutage = &view.Outage{Since: seen.Add(time.Second), Seen: seen, Message: "read servicetraffic: no answer"}
	})
	p.until(contains("#notices", "The aggregated API has not answered since "))
	p.until(contains("#notices", "Rates and announcements are from "+seen.Format(time.TimeOnly)))
	p.picture("outage-live")
	with(func(next *view.State) {
		next.Traffic, next.Announcements = nil, nil
		next.LiveOutage = &view.Outage{Since: seen, Message: "not allowed: to list servicetraffic"}
	})
	p.until(contains("#panel", "The aggregated API has not been read since "+seen.Format(time.TimeOnly)+": not allowed"))
	with(func(next *view.State) {
		silent := *state.Announcements
		silent.NodeAnswers = livev1alpha1.NodeAnswers{Answered: silent.Answered[:4], Silent: silent.Answered[4:]}
		next.Announcements = &silent
	})
	p.until(contains("#panel", "2 nodes did not answer the aggregated API: node-005, node-006."))
	p.until(`document.querySelectorAll('#notices > *').length === 0`)
}
