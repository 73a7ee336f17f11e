// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror/apierrortest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
)

// aggregated answers paths in the map with an object or a status code, and others as the cluster does.
type aggregated map[string]any

const (
	liveRoot          = "/apis/live.millrace.io/v1alpha1"
	liveAnnouncements = liveRoot + "/vipannouncements"
	liveSessions      = liveRoot + "/bgpsessions"
	liveTraffic       = liveRoot + "/servicetraffic"
	livePods          = "/api/v1/namespaces/millrace-system/pods"
)

func (a aggregated) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	answer, ok := a[request.URL.Path]
	if !ok {
		listsOf(listed).ServeHTTP(out, request)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	if code, failed := answer.(int); failed {
		reasons := map[int]metav1.StatusReason{
			http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
			http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable,
		}
		out.WriteHeader(code)
		answer = metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code],
			Message: apierrortest.Denied(request.URL.Path),
		}
	} else if request.URL.Path != liveRoot {
		out.Header().Add("Warning", `299 - "1 of 3 nodes did not answer: node3"`)
	}
	_ = json.NewEncoder(out).Encode(answer)
}

// there answers everything, of nodes node1 and node2.
func there() aggregated {
	answers := livev1alpha1.NodeAnswers{Answered: []string{"node1", "node2"}, Silent: []string{"node3"}}
	announced := func(vip, peer, ranges string) livev1alpha1.VIPAnnouncement {
		return livev1alpha1.VIPAnnouncement{ObjectMeta: metav1.ObjectMeta{Name: vip}, Address: vip, Announced: []livev1alpha1.Announced{
			{Peers: []string{peer}, Count: 2, NodeRanges: ranges},
		}}
	}
	traffic := livev1alpha1.ServiceTraffic{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Drops: map[string]float64{"no_endpoint": 1},
		Frontends: []livev1alpha1.FrontendTraffic{{VIP: "203.0.113.1", Port: 80, Protocol: "TCP", Rates: livev1alpha1.TrafficRates{Packets: 7, Drops: 1}}},
	}
	list := livev1alpha1.ServiceTrafficList{AnsweredNodes: 2, Items: []livev1alpha1.ServiceTraffic{traffic}}
	list.Window.Duration = 10e9
	ofAll := list
	ofAll.Drops = map[string]float64{"no_frontend": 3}
	return aggregated{
		liveRoot: metav1.APIResourceList{GroupVersion: "live.millrace.io/v1alpha1", APIResources: []metav1.APIResource{
			{Name: "vipannouncements"}, {Name: "bgpsessions"}, {Name: "servicetraffic"},
		}},
		liveAnnouncements: livev1alpha1.VIPAnnouncementList{NodeAnswers: answers, Items: []livev1alpha1.VIPAnnouncement{
			announced("203.0.113.1", "by-live", "0-1"), announced("203.0.113.2", "by-live", "0,1"),
		}},
		liveSessions: livev1alpha1.BGPSessionList{NodeAnswers: answers, Items: []livev1alpha1.BGPSession{
			{Node: "node1", Peer: "by-live", Address: "198.51.100.1", State: "Established"},
		}},
		liveTraffic: ofAll, liveRoot + "/namespaces/shop/servicetraffic": list,
	}
}

func (a aggregated) with(path string, answer any) aggregated {
	changed := maps.Clone(a)
	changed[path] = answer
	return changed
}

// Commands print the same with the aggregated API and with agents.
func TestLiveOrAgents(t *testing.T) {
	const agent, api, warned = "router1", "by-live", "Warning: 1 of 3 nodes did not answer: node3\n"
	noNodes := livev1alpha1.VIPAnnouncementList{}
	older := livev1alpha1.VIPAnnouncementList{NodeAnswers: livev1alpha1.NodeAnswers{Answered: []string{"node1"}}, Items: []livev1alpha1.VIPAnnouncement{
		{Address: "203.0.113.1", Announced: []livev1alpha1.Announced{{Peers: []string{"x"}, Count: 1}}},
	}}
	for name, test := range map[string]struct {
		api            aggregated
		line           string
		stdout, stderr string
		code           int
	}{
		"vips":             {there(), "vips", "all 2 nodes to " + api, warned, exitOK},
		"one VIP":          {there(), "vips 203.0.113.2", api, warned, exitOK},
		"status":           {there(), "status", api, warned, exitOK},
		"peers":            {there(), "bgp peers", api, warned, exitOK},
		"peers of a node":  {there(), "bgp peers --node node1", api, warned, exitOK},
		"a node without":   {there(), "bgp peers --node node2 -o json", `"node": "node2"`, warned, exitOK},
		"no such node":     {there(), "bgp peers --node node7", "", "no agent on node node7; did you mean node1?", exitError},
		"a silent node":    {there(), "bgp peers --node node3", "", warned, exitError},
		"top":              {there(), "top --once", "2 nodes, 1 frontend, over 10 s, drops: no_frontend 3.00/s\n", warned, exitOK},
		"top of a tenant":  {there().with(liveTraffic, http.StatusForbidden).with(livePods, http.StatusForbidden), "top --once -n shop", "drops: no_endpoint 1.00/s", warned, exitOK},
		"top of no VIP":    {there(), "top --once --vip 203.0.113.9", "", "no VIP 203.0.113.9; did you mean 203.0.113.1?", exitError},
		"top of nodes":     {there(), "top --once --node node1", "", "no agent runs", exitError},
		"top's interval":   {there(), "top --once --interval 1s", "", "no agent runs", exitError},
		"none, vips":       {aggregated{liveRoot: http.StatusNotFound}, "vips", agent, "", exitOK},
		"none, peers":      {aggregated{liveRoot: http.StatusNotFound}, "bgp peers", "", "another version", exitError},
		"none, top":        {aggregated{liveRoot: http.StatusNotFound}, "top --once", "", "no agent runs", exitError},
		"away, vips":       {aggregated{liveRoot: http.StatusServiceUnavailable}, "vips", agent, "", exitOK},
		"away later":       {there().with(liveAnnouncements, http.StatusServiceUnavailable), "vips", agent, "", exitOK},
		"forbidden, vips":  {there().with(liveAnnouncements, http.StatusForbidden), "vips", agent, "", exitOK},
		"nobody answers":   {there().with(liveAnnouncements, noNodes), "vips", agent, "", exitOK},
		"an older version": {there().with(liveAnnouncements, older), "vips", agent, "", exitOK},
		"another resource": {there().with(liveRoot, metav1.APIResourceList{}), "vips", agent, "", exitOK},
		"top of neither": {
			there().with(liveTraffic, http.StatusForbidden).with(livePods, http.StatusForbidden), "top --once", "",
			"millrace: not allowed: user jane may not list pods in namespace millrace-system: Role millrace-viewer of namespace millrace-system permits it; " +
				"to read live.millrace.io instead: user jane may not list servicetraffic.live.millrace.io: ClusterRole millrace-live-viewer permits it", exitError,
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.api)
			defer server.Close()
			environment := environment{width: 100}
			var stdout, stderr bytes.Buffer
			environment.stdout, environment.stderr = &stdout, &stderr
			environment.args = append([]string{"millrace", "--kubeconfig", kubeconfigOf(t, server.URL)}, strings.Fields(test.line)...)
			environment.agents = func(cluster.Config, []corev1.Pod) (agents, error) { return with("router1"), nil }
			code := run(t.Context(), environment)
			if code != test.code || !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) ||
				test.stderr == "" && stderr.Len() > 0 || test.stdout == "" && stdout.Len() > 0 {
				t.Errorf("code %d, want %d\nstdout: %s\nstderr: %s", code, test.code, stdout.String(), stderr.String())
			}
		})
	}
}

func with(peer string) *pool {
	made := both()
	for _, answer := range made.answers {
		answer.Groups[0].Peers = []string{peer}
	}
	return made
}

func TestWithoutLiveAPIAndAgents(t *testing.T) {
	server := httptest.NewServer(there().with(liveAnnouncements, http.StatusForbidden))
	defer server.Close()
	forbidden := fmt.Errorf("%w: to run a command in pod a", cluster.ErrForbidden)
	p := &pool{errors: map[string]error{"node1": forbidden, "node2": forbidden}}
	stdout, stderr, code := runWith(t, p, "vips --kubeconfig "+kubeconfigOf(t, server.URL))
	text := strings.Join(strings.Fields(stdout), " ")
	if code != exitOK || !strings.Contains(text, "Role millrace-tracer") || !strings.Contains(text, "listing vipannouncements of") {
		t.Errorf("code %d, stdout %s, stderr %s", code, stdout, stderr)
	}
	_, stderr, code = runWith(t, p, "bgp peers --kubeconfig "+kubeconfigOf(t, httptestOf(t, there().with(liveSessions, http.StatusForbidden))))
	if code != exitError || !strings.Contains(stderr, "run a command in pod a; to read live.millrace.io instead: user jane may not list bgpsessions.live.millrace.io: ClusterRole millrace-viewer permits it") {
		t.Errorf("code %d, stderr %s", code, stderr)
	}
}

func httptestOf(t *testing.T, handler http.Handler) string {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

type announcing struct {
	living
	api     aggregated
	peer    atomic.Pointer[string]
	changes chan livev1alpha1.VIPAnnouncement
}

func (a *announcing) ServeHTTP(out http.ResponseWriter, request *http.Request) {
	switch {
	case request.URL.Path == liveAnnouncements && request.URL.Query().Get("watch") != "":
		out.Header().Set("Content-Type", "application/json")
		out.(http.Flusher).Flush()
		for {
			select {
			case <-request.Context().Done():
				return
			case changed := <-a.changes:
				changed.APIVersion, changed.Kind = "live.millrace.io/v1alpha1", "VIPAnnouncement"
				_ = json.NewEncoder(out).Encode(map[string]any{"type": "MODIFIED", "object": changed})
				out.(http.Flusher).Flush()
			}
		}
	case request.URL.Path == liveAnnouncements:
		list := a.api[liveAnnouncements].(livev1alpha1.VIPAnnouncementList)
		announced := livev1alpha1.Announced{Peers: []string{*a.peer.Load()}, Count: 2, NodeRanges: "0-1"}
		list.Items = []livev1alpha1.VIPAnnouncement{{Address: "203.0.113.1", Announced: []livev1alpha1.Announced{announced}}}
		a.api.with(liveAnnouncements, list).ServeHTTP(out, request)
	case strings.HasPrefix(request.URL.Path, liveRoot):
		a.api.ServeHTTP(out, request)
	default:
		a.living.ServeHTTP(out, request)
	}
}

// --watch also follows the nodes' announcements, which are in no object.
func TestWatchFollowsAnnouncements(t *testing.T) {
	api := &announcing{living: living{make(chan string)}, api: there(), changes: make(chan livev1alpha1.VIPAnnouncement)}
	api.peer.Store(new("first"))
	server := httptest.NewServer(api)
	defer server.Close()
	stdout := output{make(chan string)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		ended <- run(ctx, environment{
			args:   []string{"millrace", "vips", "--watch", "--kubeconfig", kubeconfigOf(t, server.URL)},
			stdout: stdout, stderr: io.Discard, width: 100,
			agents: func(cluster.Config, []corev1.Pod) (agents, error) { return with("an agent"), nil },
		})
	}()
	stdout.until(t, "first")
	api.peer.Store(new("second"))
	api.changes <- livev1alpha1.VIPAnnouncement{Address: "203.0.113.1"}
	stdout.until(t, "second")
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d after it was interrupted", code)
	}
}
