// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
)

var listed = map[string]string{
	"vips": `{"metadata":{"name":"203.0.113.1"},"spec":{"address":"203.0.113.1","claims":[{"namespace":"shop","name":"web"}]}},
		{"metadata":{"name":"203.0.113.2"},"spec":{"address":"203.0.113.2","claims":[{"namespace":"default","name":"web"}]}}`,
	"services": `{"metadata":{"namespace":"shop","name":"web","labels":{"tier":"gold"}}},{"metadata":{"namespace":"default","name":"web"}}`,
	"lbnodes":  `{"metadata":{"name":"node1"},"spec":{"id":1}},{"metadata":{"name":"node2"},"spec":{"id":2}}`,
	"lbnodereports": `{"metadata":{"name":"node1"},"status":{"vips":{"announced":2,"programmed":2}}},
		{"metadata":{"name":"node2"},"status":{"vips":{"announced":1,"programmed":2}}}`,
}

type pool struct {
	answers map[string]*consoleapi.VIPs
	errors  map[string]error

	mu      sync.Mutex
	queried map[string][]string
}

func (p *pool) Nodes() []string { return []string{"node1", "node2"} }

func (p *pool) Run(_ context.Context, node string, args []string, out io.Writer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queried == nil {
		p.queried = map[string][]string{}
	}
	p.queried[node] = args
	if err := p.errors[node]; err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(consoleapi.Line{VIPs: p.answers[node]})
}

func announces(node string, vips ...string) *consoleapi.VIPs {
	answer := &consoleapi.VIPs{Node: node, Groups: []consoleapi.VIPGroup{{Peers: []string{"router1"}}}}
	for _, vip := range vips {
		answer.Groups[0].Addresses = append(answer.Groups[0].Addresses, netip.MustParseAddr(vip))
	}
	return answer
}

func both() *pool {
	return &pool{answers: map[string]*consoleapi.VIPs{
		"node1": announces("node1", "203.0.113.1", "203.0.113.2"), "node2": announces("node2", "203.0.113.1", "203.0.113.2"),
	}}
}

func runWith(t *testing.T, p *pool, line string) (stdout, stderr string, code int) {
	t.Helper()
	var out, complaints bytes.Buffer
	code = run(t.Context(), environment{
		args: append([]string{"millrace"}, strings.Fields(line)...), stdout: &out, stderr: &complaints, width: 100,
		agents: func(cluster.Config, []corev1.Pod) (agents, error) { return p, nil },
	})
	return out.String(), complaints.String(), code
}

func TestVIPs(t *testing.T) {
	kubeconfig := " --kubeconfig " + fakeCluster(t, listed)
	for name, test := range map[string]struct {
		line    string
		queried []string
		has     []string
		lacks   []string
	}{
		"all": {
			"vips", []string{"vips"},
			[]string{"203.0.113.1", "203.0.113.2", "all 2 nodes to router1"}, []string{"Services"},
		},
		"of a namespace":     {"vips -n shop", []string{"vips", "203.0.113.1"}, []string{"203.0.113.1"}, []string{"203.0.113.2", "Services"}},
		"of all":             {"vips -n shop -A", []string{"vips"}, []string{"203.0.113.1", "203.0.113.2"}, nil},
		"an address":         {"vips 203.0.113.2", []string{"vips", "203.0.113.2"}, []string{"default/web", "Nodes", "node1", "router1"}, []string{"shop"}},
		"a Service":          {"vips shop/web", []string{"vips", "203.0.113.1"}, []string{"shop/web"}, []string{"default/web"}},
		"in a namespace":     {"vips web -n shop", []string{"vips", "203.0.113.1"}, []string{"shop/web"}, []string{"default/web"}},
		"in the context's":   {"vips web", []string{"vips", "203.0.113.2"}, []string{"default/web"}, []string{"shop/web"}},
		"in any":             {"vips web -A", []string{"vips", "203.0.113.1", "203.0.113.2"}, []string{"default/web", "shop/web"}, nil},
		"two":                {"vips 203.0.113.1 default/web", []string{"vips", "203.0.113.1", "203.0.113.2"}, []string{"default/web", "shop/web"}, nil},
		"as JSON":            {"vips -o json", []string{"vips"}, []string{`"nodes": [`, `"router1"`}, nil},
		"one of them, wide":  {"vips shop/web -o wide", []string{"vips", "203.0.113.1"}, []string{"WITHHELD BY"}, nil},
		"nodes ask no agent": {"nodes", nil, []string{"?/2"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := both()
			stdout, stderr, code := runWith(t, p, test.line+kubeconfig)
			if code != exitOK || stderr != "" {
				t.Fatalf("exit code %d: %s", code, stderr)
			}
			if !slices.Equal(p.queried["node1"], test.queried) {
				t.Errorf("queried %q, want %q", p.queried["node1"], test.queried)
			}
			for _, want := range test.has {
				if !strings.Contains(stdout, want) {
					t.Errorf("no %q in\n%s", want, stdout)
				}
			}
			for _, unwanted := range test.lacks {
				if strings.Contains(stdout, unwanted) {
					t.Errorf("%q in\n%s", unwanted, stdout)
				}
			}
		})
	}
	for line, want := range map[string]string{
		"vips 203.0.113.7": "there is no VIP 203.0.113.7", "vips web -n other": "no Service other/web; existing names: default/web, shop/web",
		"vips db -A": "no such VIP: no Service db",
	} {
		if _, stderr, code := runWith(t, both(), line+kubeconfig); code != exitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q, want %q", line, code, stderr, want)
		}
	}
}

func TestVIPsWithoutAnAgent(t *testing.T) {
	kubeconfig := " --kubeconfig " + fakeCluster(t, listed)
	for line, isReported := range map[string]bool{"vips": true, "status": true, "vips 203.0.113.1": true, "vips -o json": false} {
		p := both()
		p.errors = map[string]error{"node2": errors.New("no route to host")}
		stdout, stderr, code := runWith(t, p, line+kubeconfig)
		where := stdout
		if !isReported {
			where = stderr
		}
		if code != exitOK || !strings.Contains(stdout, "router1") || !strings.Contains(where, "no route to host") {
			t.Errorf("%s: exit code %d, %s\n%s", line, code, stderr, stdout)
		}
	}
}

func TestVIPsForbidden(t *testing.T) {
	kubeconfig := " --kubeconfig " + fakeCluster(t, listed)
	forbidden := fmt.Errorf("%w: to run a command in pod a", cluster.ErrForbidden)
	for _, line := range []string{"vips", "status", "vips 203.0.113.1"} {
		p := &pool{errors: map[string]error{"node1": forbidden, "node2": forbidden}}
		stdout, stderr, code := runWith(t, p, line+kubeconfig)
		if code != exitOK || !strings.Contains(stdout, "millrace-tracer") || strings.Contains(stdout, "AgentUnreachable") {
			t.Errorf("%s: exit code %d, %s\n%s", line, code, stderr, stdout)
		}
		if line == "status" && !strings.Contains(stdout, "?/2") {
			t.Errorf("no counts in\n%s", stdout)
		}
	}
	_, stderr, _ := runWith(t, &pool{errors: map[string]error{"node1": forbidden, "node2": forbidden}}, "vips -o json"+kubeconfig)
	if !strings.Contains(stderr, "millrace-tracer") {
		t.Errorf("standard error %q", stderr)
	}
}

// living is a cluster whose VIPs change: each watch gets the events that are sent.
type living struct {
	events chan string
}

func (l living) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	out.Header().Set("Content-Type", "application/json")
	resource := filepath.Base(request.URL.Path)
	query := request.URL.Query()
	version := "v1"
	if parts := strings.Split(request.URL.Path, "/"); parts[1] == "apis" {
		version = parts[2] + "/" + parts[3]
	}
	switch {
	case query.Get("sendInitialEvents") != "":
		// Like API servers without streaming lists: the client then lists.
		out.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(out, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case query.Get("watch") == "":
		kind := listKinds[resource]
		fmt.Fprintf(out, `{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1"},"items":[%s]}`, version, kind, listed[resource])
	default:
		out.(http.Flusher).Flush()
		for {
			select {
			case <-request.Context().Done():
				return
			case event := <-l.of(resource):
				fmt.Fprintln(out, event)
				out.(http.Flusher).Flush()
			}
		}
	}
}

func (l living) of(resource string) chan string {
	if resource == "vips" {
		return l.events
	}
	return nil
}

func TestWatchInterval(t *testing.T) {
	if rest := (&list{needsAgents: true}).pause()(time.Second); rest < 5*time.Second {
		t.Errorf("with queries of agents the pause is %s after a second", rest)
	}
	if rest := (&list{}).pause()(time.Second); rest != 0 {
		t.Errorf("without queries of agents the pause is %s", rest)
	}
}

// --watch shows a change at once, and does not print an equal list again.
func TestWatch(t *testing.T) {
	l := living{make(chan string)}
	api := httptest.NewServer(l)
	defer api.Close()
	stdout := output{make(chan string)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		ended <- run(ctx, environment{
			args: []string{"millrace", "vips", "--watch", "--kubeconfig", kubeconfigOf(t, api.URL)}, stdout: stdout, stderr: t.Output(), width: 100,
			agents: func(cluster.Config, []corev1.Pod) (agents, error) { return both(), nil },
		})
	}()
	if text := stdout.until(t, "203.0.113.2"); strings.Contains(text, "203.0.113.3") {
		t.Errorf("unexpected text in %q", text)
	}
	l.events <- `{"type":"ADDED","object":{"apiVersion":"millrace.io/v1beta1","kind":"VIP","metadata":{"name":"203.0.113.3","resourceVersion":"2"},"spec":{"address":"203.0.113.3"}}}`
	if text := stdout.until(t, "203.0.113.3"); !strings.HasPrefix(text, "\nADDRESS") || strings.Count(text, "ADDRESS") != 1 {
		t.Errorf("the second list is %q", text)
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d after it was interrupted", code)
	}
}
