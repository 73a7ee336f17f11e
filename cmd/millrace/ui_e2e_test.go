// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

type outages struct {
	t       *testing.T
	next    func() view.Change
	head    view.Head
	nodes   map[string]bool
	changed bool
}

func (o *outages) until(wanted func(*view.Head) bool) {
	o.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		change := o.next()
		if change.Head != nil {
			o.head = view.Head{}
			controlplane.Must(o.t, json.Unmarshal(change.Head, &o.head))
		}
		o.changed = change.Nodes != nil
		if change.Nodes != nil {
			for _, row := range change.Nodes.Set {
				var node view.Node
				controlplane.Must(o.t, json.Unmarshal(row, &node))
				o.nodes[node.Name] = true
			}
			for _, id := range change.Nodes.Gone {
				o.t.Errorf("%s is missing on the page", id)
			}
		}
		if wanted(&o.head) {
			return
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("the head is still %+v; away: %+v; aggregated API: %+v", o.head, o.head.Away, o.head.Live)
		}
	}
}

func (o *outages) fails(broken func() error, message string) {
	o.t.Helper()
	began := time.Now()
	controlplane.Must(o.t, broken())
	o.until(func(head *view.Head) bool { return head.Away != nil && strings.Contains(head.Away.Message, message) })
	away := o.head.Away
	if away.Since.Before(began) || away.Seen.After(away.Since) || began.Sub(away.Seen) > 6*probeInterval {
		o.t.Errorf("broken at %s, and the page shows %+v", began, away)
	}
	if !strings.Contains(away.Message, "list vippools at https://127.0.0.1:") {
		o.t.Errorf("the page does not show the failed attempt: %q", away.Message)
	}
	if !o.nodes["node1"] {
		o.t.Error("the last state is not shown")
	}
}

// TestUIOutage checks that the page shows since when the API server hangs or is gone, keeps its content,
// and recovers.
func TestUIOutage(t *testing.T) {
	ctrllog.SetLogger(logr.Discard())
	server := controlplane.Start(t, "../..")
	objects := server.Install(t, server.Admin(), client.Options{}, millracev1beta1.AddToScheme)
	node := func(name string, id int32) *millracev1beta1.LBNode {
		return &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: millracev1beta1.LBNodeSpec{ID: id, Addresses: []string{"198.18.0.1"}}}
	}
	objects.Make(t, node("node1", 1))
	kubeconfig, err := server.WriteAdminKubeconfig()
	controlplane.Must(t, err)
	stdout := output{make(chan string)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		ended <- run(ctx, environment{args: []string{"millrace", "ui", "--kubeconfig", kubeconfig, "--request-timeout", "2s"},
			stdout: stdout, stderr: t.Output(), width: 100})
	}()
	printed := stdout.until(t, "\n")
	page := &outages{t: t, next: changesOf(t, printed), nodes: map[string]bool{}}
	page.until(func(head *view.Head) bool { return head.Live != nil })
	if live := page.head.Live; !strings.Contains(live.Message, "not installed") || live.Since.IsZero() || !live.Seen.IsZero() {
		t.Errorf("without an aggregated API the page shows %+v", live)
	}
	page.fails(server.Pause, "no answer within 2s")
	if code := statusOf(t, printed, "/api/ask?id=node/node1"); code != http.StatusBadGateway {
		t.Errorf("a query to an agent returns %d, want %d without an answer", code, http.StatusBadGateway)
	}
	controlplane.Must(t, server.Resume())
	page.until(func(head *view.Head) bool { return head.Away == nil })
	page.fails(server.Kill, "connection refused")
	controlplane.Must(t, server.Restart(t))
	page.until(func(head *view.Head) bool { return head.Away == nil })
	objects.Make(t, node("node2", 2))
	page.until(func(*view.Head) bool { return page.nodes["node2"] })
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d after it was interrupted", code)
	}
}

func statusOf(t *testing.T, printed, path string) int {
	t.Helper()
	address, token, _ := strings.Cut(strings.TrimSpace(printed), "/#token=")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
	controlplane.Must(t, err)
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	controlplane.Must(t, err)
	defer response.Body.Close()
	return response.StatusCode
}
